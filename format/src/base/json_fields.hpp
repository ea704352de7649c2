#pragma once
// Typed access to the members of a JSON object. Private to format.
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/staging_names.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace unishard::detail {

/// A JSON object together with its path from the root of the document, which messages name.
/// Lifetime: the JSON must outlive this object.
/// Throws: every function throws Corrupt, naming the field's path, when the field is missing, has
/// another type or exceeds the limit given.
class Fields {
 public:
  Fields(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {
    if (!json.is_object()) fail("", "must be an object");
  }

  const std::string& path() const { return path_; }
  bool has(std::string_view key) const { return json_->contains(key); }

  const Json& at(std::string_view key) const {
    const auto found = json_->find(key);
    if (found == json_->end()) fail(key, "is missing");
    return *found;
  }

  std::uint64_t u64(std::string_view key,
                    std::uint64_t max = std::numeric_limits<std::uint64_t>::max()) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned() &&
        !(value.is_number_integer() && value.get<std::int64_t>() >= 0)) {
      fail(key, "must be a non-negative integer");
    }
    const auto number = value.get<std::uint64_t>();
    if (number > max) fail(key, fmt::format("is {}, above the limit of {}", number, max));
    return number;
  }

  std::int64_t i64(std::string_view key, std::int64_t min, std::int64_t max) const {
    const Json& value = at(key);
    if (!value.is_number_integer()) fail(key, "must be an integer");
    if (value.is_number_unsigned() &&
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(max)) {
      fail(key, fmt::format("is above the limit of {}", max));
    }
    const auto number = value.get<std::int64_t>();
    if (number < min || number > max)
      fail(key, fmt::format("is {}, not within {} to {}", number, min, max));
    return number;
  }

  double number(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_number()) fail(key, "must be a number");
    return value.get<double>();
  }

  bool boolean(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) fail(key, "must be true or false");
    return value.get<bool>();
  }

  const std::string& text(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail(key, "must be a string");
    return value.get_ref<const std::string&>();
  }

  const std::string& save_id() const {
    const std::string& id = text("save_id");
    if (!is_save_id(id)) fail("save_id", "must have 32 lower-case hexadecimal digits");
    return id;
  }

  const Json& array(std::string_view key, std::uint64_t max_items) const {
    const Json& value = at(key);
    if (!value.is_array()) fail(key, "must be an array");
    check_count(key, value.size(), max_items);
    return value;
  }

  /// Throws Corrupt, naming `key`, when an array with `items` items exceeds `max_items`.
  void check_count(std::string_view key, std::uint64_t items, std::uint64_t max_items) const {
    if (items > max_items)
      fail(key, fmt::format("has {} items, above the limit of {}", items, max_items));
  }

  [[noreturn]] void fail(std::string_view key, std::string_view problem) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}{}{}: {}", path_, key.empty() ? "" : ".", key, problem));
  }

 private:
  const Json* json_;
  std::string path_;
};

}  // namespace unishard::detail
