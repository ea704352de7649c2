#include "config/object_reader.hpp"

#include "unishard/format/edit_distance.hpp"
#include "unishard/format/error.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace unishard::trainer::detail {
namespace {

constexpr auto kLargestInteger =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

/// Returns true for a value that switches a key off: null, false, the number `off`, "none", an
/// empty text or object, or an object that is disabled.
bool is_off(const Json& value, double off = 0) {
  if (value.is_null() || value == "none" || value == "auto" || value == "None") return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == off;
  if (!value.is_object()) return value == "";
  if (value.contains("enabled")) return is_off(value["enabled"]);
  if (value.contains("device")) return is_off(value["device"]);
  return std::ranges::all_of(value, [](const Json& member) { return is_off(member); });
}

/// All keys of an object that are refused, so that one run names them all.
class Refused {
 public:
  void add(const std::string& problem, const std::string& hint) {
    problems_ += (problems_.empty() ? "" : "; ") + problem;
    if (hints_.find(hint) == hints_.npos) hints_ += (hints_.empty() ? "" : "; ") + hint;
  }
  /// Throws: InvalidArgument unless nothing was added.
  void raise_any() const {
    if (!problems_.empty())
      raise(ErrorCode::InvalidArgument, "configuration: " + problems_, hints_);
  }

 private:
  std::string problems_, hints_;
};

}  // namespace

std::string nearest_key(std::string_view name, std::span<const Key> keys) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const Key& key : keys) {
    const std::size_t distance = edit_distance(name, key.name);
    if (distance < best_distance) {
      best_distance = distance;
      best = key.name;
    }
  }
  return best;
}

ObjectReader::ObjectReader(const Json& object, std::string path, std::span<const Key> keys,
                           std::vector<std::string>& notes)
    : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    raise(ErrorCode::InvalidArgument, "configuration: " + path_ + " is not an object");
  }
  Refused refused;
  for (const auto& [name, value] : object.items()) {
    const auto known = std::ranges::find(keys, std::string_view(name), &Key::name);
    if (known == keys.end()) {
      const std::string near = nearest_key(name, keys);
      refused.add("unknown key " + this->path(name),
                  near.empty() ? "remove it" : "did you mean " + near + "?");
    } else if (known->use == KeyUse::NotBuilt && !is_off(value, known->off)) {
      refused.add(this->path(name) + " is not supported", "remove it or switch it off");
    } else if (known->use == KeyUse::Harmless) {
      notes.push_back(this->path(name) + " is accepted and changes nothing");
    }
  }
  refused.raise_any();
}

std::string ObjectReader::path(std::string_view key) const {
  return path_ == "$" ? std::string(key) : path_ + "." + std::string(key);
}

void ObjectReader::refuse(std::string_view key, const std::string& expected) const {
  constexpr std::size_t kShown = 80;
  std::string value = object_[std::string(key)].dump(-1, ' ', /*ensure_ascii=*/true);
  if (value.size() > kShown) value = value.substr(0, kShown) + "...";
  raise(ErrorCode::InvalidArgument,
        "configuration: " + path(key) + " is " + value + ", not " + expected);
}

const Json* ObjectReader::find(std::string_view key) const {
  const auto found = object_.find(std::string(key));
  if (found == object_.end() || found->is_null() || *found == "auto") return nullptr;
  return &*found;
}

std::optional<std::int64_t> ObjectReader::integer(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  const bool fits = !value->is_number_unsigned() || value->get<std::uint64_t>() <= kLargestInteger;
  if (value->is_number_integer() && fits) return value->get<std::int64_t>();
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (number == std::floor(number) && std::abs(number) < 9e15)
      return static_cast<std::int64_t>(number);
  }
  refuse(key, "a whole number below 2^63");
}

std::optional<double> ObjectReader::number(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number()) refuse(key, "a number");
  return value->get<double>();
}

std::optional<bool> ObjectReader::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> ObjectReader::text(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) refuse(key, "a string");
  return value->get<std::string>();
}

}  // namespace unishard::trainer::detail
