#include "unishard/trainer/config_keys.hpp"

#include "config/section_readers.hpp"

#include <fmt/format.h>

namespace unishard::trainer {
namespace {

std::string origin_text(Origin origin, const ConfigKey& key) {
  switch (origin) {
    case Origin::Default:
      return "default";
    case Origin::File:
      return "file";
    case Origin::Flag:
      return key.flag.empty() ? "flag" : std::string(key.flag);
    case Origin::Auto:
      break;
  }
  const std::string text = automatic_text(key);
  return text.empty() ? "auto" : fmt::format("auto: {}", text.substr(text.find(' ') + 1));
}

/// Returns nullptr when the path has no value.
const Json* find_in(const Json& source, std::string_view path) {
  const Json* at = &source;
  for (;;) {
    const std::size_t dot = path.find('.');
    const auto found = at->find(std::string(path.substr(0, dot)));
    if (found == at->end()) return nullptr;
    if (dot == path.npos) return &*found;
    at = &*found;
    path.remove_prefix(dot + 1);
  }
}

/// Returns true when neither the optimizer nor the schedule of the run uses the key.
bool is_of_another(const ConfigKey& key, const Config& config) {
  if (key.of.empty()) return false;
  const std::string type = key.section == "scheduler.params"
                               ? std::string(name_of(config.schedule.kind))
                               : detail::lower_case(config.optimizer);
  return fmt::format(" {} ", key.of).find(fmt::format(" {} ", type)) == std::string::npos;
}

Json default_value(const ConfigKey& key, const Config& config) {
  if (key.section == "optimizer.params") {
    if (const auto own = detail::default_of_type(detail::lower_case(config.optimizer), key.name))
      return *own;
  }
  return key.initial.empty() ? Json() : Json::parse(key.initial);
}

}  // namespace

std::vector<ConfigValue> config_values(const Config& config) {
  std::vector<ConfigValue> values;
  for (const ConfigKey& key : config_keys()) {
    const bool is_value = key.use == KeyUse::Read && key.type != KeyType::Section;
    if (!is_value || is_of_another(key, config)) continue;
    const std::string path = path_of(key);
    const auto origin = config.origins.find(path);
    const Json* given = find_in(config.source, path);
    ConfigValue value{.path = path,
                      .value = given ? *given : default_value(key, config),
                      .origin = origin == config.origins.end() ? Origin::Default : origin->second,
                      .from = {}};
    value.from = value.value.is_null() ? "not given" : origin_text(value.origin, key);
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace unishard::trainer
