#include "config/checked_config.hpp"

#include "unishard/format/error.hpp"

#include "config/automatic.hpp"
#include "config/flat_config.hpp"
#include "config/switched_off.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace unishard::trainer::detail {
namespace {

constexpr auto kLargestInteger =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

bool is_one_of(std::string_view choices, std::string_view word) {
  while (!choices.empty()) {
    const std::size_t end = std::min(choices.find(' '), choices.size());
    if (choices.substr(0, end) == word) return true;
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return false;
}

bool is_within(const ConfigKey& key, const Json& value) {
  const double number = value.get<double>();
  return number >= key.least && number <= key.most;
}

/// Of a pair of betas, 1 itself is no decay rate.
bool is_pair_within(const ConfigKey& key, const Json& value) {
  return value.is_array() && value.size() == 2 && std::ranges::all_of(value, [&](const Json& one) {
           return one.is_number() && is_within(key, one) && one.get<double>() < key.most;
         });
}

bool has_allowed_value(const ConfigKey& key, const Json& value) {
  switch (key.type) {
    case KeyType::Boolean:
      return value.is_boolean();
    case KeyType::Integer:
      return whole_number(value).has_value() && is_within(key, value);
    case KeyType::Number:
      return value.is_number() && is_within(key, value);
    case KeyType::Text:
      return value.is_string() &&
             value.get_ref<const std::string&>().find('\0') == std::string::npos &&
             (key.choices.empty() || is_one_of(key.choices, value.get<std::string>()));
    case KeyType::Pair:
      return is_pair_within(key, value);
    case KeyType::Section:
    case KeyType::Any:
      break;
  }
  return true;
}

bool equals_json(std::string_view text, const Json& value) {
  return !text.empty() && Json::parse(text) == value;
}

/// A key that is on by default is not switched off without a consequence, and an object is no
/// value.
bool is_off_value(const ConfigKey& key, const Json& value) {
  return key.initial != "true" && !value.is_object() && is_switched_off(key.name, value);
}

bool is_idle(const ConfigKey& key, const Json& value) {
  if (equals_json(key.initial, value) || equals_json(key.idle, value)) return true;
  if (key.type != KeyType::Any) return key.use == KeyUse::Refused && is_off_value(key, value);
  return (key.use == KeyUse::Refused || value.is_object()) && is_switched_off(key.name, value);
}

/// Returns true when the key's section has a switch that is off, so that the key does nothing.
bool is_in_disabled_section(const ConfigKey& key, const FlatConfig& flat) {
  const std::string path = fmt::format("{}.enabled", key.section);
  if (key.section.empty() || find_config_key(path) == nullptr) return false;
  const auto found = flat.values.find(path);
  return found == flat.values.end() || found->second != true;
}

void check_leaf(const FlatConfig& flat, const std::string& path, KeyProblems& problems,
                std::vector<std::string>& notes) {
  const ConfigKey& key = *find_config_key(path);
  const Json& value = flat.values.at(path);
  const auto written = flat.written.find(path);
  const std::string& shown = written == flat.written.end() ? path : written->second;
  const bool does_nothing =
      key.use != KeyUse::Read && (is_idle(key, value) || is_in_disabled_section(key, flat));
  if (does_nothing) return;
  if (key.use == KeyUse::Refused) {
    const bool is_on = key.initial == "true";  // by default
    problems.add(fmt::format("{}{} is not supported: {}", shown, is_on ? " false" : "", key.text),
                 is_on ? "remove it" : "remove it or switch it off");
  } else if (!has_allowed_value(key, value)) {
    problems.add(fmt::format("{} is {}, not {}", shown, shown_value(value), values_text(key)), "");
  } else if (key.use == KeyUse::Noted) {
    notes.push_back(fmt::format("{}: {}", shown, key.text));
  }
}

void apply_flags(FlatConfig& flat, const ConfigInputs& inputs,
                 std::map<std::string, Origin>& origins) {
  for (const auto& [path, value] : inputs.flags) {
    flat.set(path, value);
    flat.written.erase(path);
    origins[path] = Origin::Flag;
  }
}

/// Puts `value` into the object at `path` of `json`.
void put_at(Json& json, std::string_view path, const Json& value) {
  Json* object = &json;
  for (std::size_t dot = path.find('.'); dot != path.npos; dot = path.find('.')) {
    object = &(*object)[std::string(path.substr(0, dot))];
    path.remove_prefix(dot + 1);
  }
  (*object)[std::string(path)] = value;
}

}  // namespace

std::optional<std::int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kLargestInteger)
    return std::nullopt;
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (number != std::floor(number) || std::abs(number) >= 9e15) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

std::string shown_value(const Json& value) {
  constexpr std::size_t kShown = 80;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  return text.size() > kShown ? text.substr(0, kShown) + "..." : text;
}

CheckedConfig::CheckedConfig(const Json& json, const ConfigInputs& inputs) {
  KeyProblems problems;
  FlatConfig flat = flatten_config(json, problems, notes_);
  for (const std::string& path : flat.order) origins_[path] = Origin::File;
  apply_flags(flat, inputs, origins_);
  resolve_automatic(flat, inputs, origins_, notes_);
  for (const std::string& path : flat.order) check_leaf(flat, path, problems, notes_);
  problems.raise_any();
  std::erase_if(origins_, [&](const auto& each) { return !flat.values.contains(each.first); });
  order_ = std::move(flat.order);
  values_ = std::move(flat.values);
  sections_ = std::move(flat.sections);
}

const Json* CheckedConfig::find(std::string_view path) const {
  const auto found = values_.find(std::string(path));
  return found == values_.end() ? nullptr : &found->second;
}

Json CheckedConfig::value_of(std::string_view path) const {
  if (const Json* given = find(path)) return *given;
  return Json::parse(find_config_key(path)->initial);
}

std::int64_t CheckedConfig::integer(std::string_view path) const {
  return whole_number(value_of(path)).value_or(0);
}
double CheckedConfig::number(std::string_view path) const { return value_of(path).get<double>(); }
bool CheckedConfig::boolean(std::string_view path) const { return value_of(path).get<bool>(); }
std::string CheckedConfig::text(std::string_view path) const {
  return value_of(path).get<std::string>();
}
std::optional<std::int64_t> CheckedConfig::given_integer(std::string_view path) const {
  return find(path) ? std::optional(integer(path)) : std::nullopt;
}
std::optional<double> CheckedConfig::given_number(std::string_view path) const {
  return find(path) ? std::optional(number(path)) : std::nullopt;
}
std::optional<bool> CheckedConfig::given_boolean(std::string_view path) const {
  return find(path) ? std::optional(boolean(path)) : std::nullopt;
}
std::optional<std::string> CheckedConfig::given_text(std::string_view path) const {
  return find(path) ? std::optional(text(path)) : std::nullopt;
}

void CheckedConfig::refuse(std::string_view path, std::string_view expected) const {
  raise(ErrorCode::InvalidArgument, fmt::format("configuration: {} is {}, not {}", path,
                                                shown_value(value_of(path)), expected));
}

Json CheckedConfig::source() const {
  Json json = Json::object();
  for (const std::string& path : order_) put_at(json, path, values_.at(path));
  return json;
}

}  // namespace unishard::trainer::detail
