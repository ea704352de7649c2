#include "formats/deepspeed/listed_patterns.hpp"

#include "formats/deepspeed/name_pattern.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace unishard::converters::deepspeed {
namespace {

std::vector<ListedPattern> patterns_in(const Json& info) {
  std::vector<ListedPattern> found;
  const auto add = [&](std::string_view list, const Json& patterns) {
    if (!patterns.is_array()) return;
    for (const Json& pattern : patterns) {
      if (pattern.is_string()) found.push_back({std::string(list), pattern.get<std::string>()});
    }
  };
  if (!info.is_object()) return found;
  for (const std::string_view list : kPatternLists) add(list, info.value(list, Json()));
  for (const Json& entry : info.value(kSubParameterList, Json::array())) {
    if (entry.is_object()) add(kSubParameterList, entry.value("patterns", Json()));
  }
  return found;
}

}  // namespace

std::vector<ListedPattern> unmatched_patterns(const Json& info, const Catalog& catalog) {
  std::vector<ListedPattern> listed = patterns_in(info);
  std::map<std::string_view, NamePatterns> lists;  // each has a limit of its own
  for (std::size_t i = 0; i < listed.size(); ++i) lists[listed[i].list].add(listed[i].pattern, i);
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : catalog.tensors) names.insert(tensor.fqn);
  std::vector<bool> matches(listed.size());
  for (const auto& [list, patterns] : lists) {
    for (const std::string_view name : names) {
      for (const std::size_t number : patterns.find(name)) matches[number] = true;
    }
  }
  std::vector<ListedPattern> unmatched;
  for (std::size_t i = 0; i < listed.size(); ++i) {
    if (!matches[i]) unmatched.push_back(std::move(listed[i]));
  }
  return unmatched;
}

Json without_patterns(const Json& info, const std::vector<ListedPattern>& unmatched) {
  std::set<std::pair<std::string_view, std::string_view>> gone;
  for (const ListedPattern& each : unmatched) gone.emplace(each.list, each.pattern);
  const auto rest = [&](std::string_view list, const Json& patterns) {
    Json kept = Json::array();
    for (const Json& pattern : patterns) {
      if (pattern.is_string() && !gone.contains({list, pattern.get_ref<const std::string&>()}))
        kept.push_back(pattern);
    }
    return kept;
  };
  Json rules = Json::object();
  for (const auto& [key, value] : info.items()) {
    if (std::ranges::count(kPatternLists, key) > 0) {
      rules[key] = rest(key, value);
    } else if (std::ranges::count(kOtherKeys, key) > 0) {
      rules[key] = value;
    }
  }
  if (!rules.contains(kSubParameterList)) return rules;
  Json entries = Json::array();
  for (Json entry : rules[kSubParameterList]) {
    if (!entry.is_object()) continue;
    entry["patterns"] = rest(kSubParameterList, entry.value("patterns", Json::array()));
    if (!entry["patterns"].empty()) entries.push_back(std::move(entry));
  }
  rules[kSubParameterList] = std::move(entries);
  return rules;
}

}  // namespace unishard::converters::deepspeed
