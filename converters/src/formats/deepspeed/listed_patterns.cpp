#include "formats/deepspeed/listed_patterns.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "formats/deepspeed/name_pattern.hpp"

#include <fmt/format.h>

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

void say_unmatched(const std::vector<ListedPattern>& unmatched, const std::string& file,
                   std::vector<std::string>& lines) {
  constexpr std::size_t kNamed = 8;
  for (std::size_t i = 0; i < std::min(kNamed, unmatched.size()); ++i) {
    lines.push_back(
        fmt::format("{}: universal_checkpoint_info: the pattern {} of {} matches no "
                    "parameter",
                    file, unishard::quote(unmatched[i].pattern), unmatched[i].list));
  }
  if (unmatched.size() > kNamed) {
    lines.push_back(
        fmt::format("{}: universal_checkpoint_info: {} more patterns match no parameter", file,
                    unmatched.size() - kNamed));
  }
}

void say_unmatched_of(const Catalog& catalog, const std::string& file,
                      std::vector<std::string>& lines) {
  const Json& client = catalog.client_state;
  if (!client.is_object() || !client.contains(kCutPatterns)) return;
  try {
    say_unmatched(unmatched_patterns(client[kCutPatterns], catalog), file, lines);
  } catch (const Error&) {
    return;  // patterns of a kind that is not read, which a universal folder does not need
  }
}

void say_contradictions(const Json& info, const Catalog& catalog, const std::string& file,
                        std::vector<std::string>& lines) {
  const std::vector<ListedPattern> listed = patterns_in(info);
  constexpr std::string_view kVocabulary = "vocabulary_parameter_patterns";
  std::map<std::string_view, NamePatterns> lists;
  for (std::size_t i = 0; i < listed.size(); ++i) lists[listed[i].list].add(listed[i].pattern, i);
  const Json rows = info.is_object() ? info.value("original_vocab_size", Json()) : Json();
  if (rows.is_number() && !lists.contains(kVocabulary))
    lines.push_back(fmt::format(
        "{}: universal_checkpoint_info: original_vocab_size is {}, and no pattern names the tables "
        "of the vocabulary: rows of padding stay in them",
        file, rows.dump()));
  // How a table was cut is another list's business.
  lists.erase(kVocabulary);
  for (const TensorInfo& tensor : catalog.tensors) {
    std::string_view first;
    for (const auto& [list, patterns] : lists) {
      if (patterns.find(tensor.fqn).empty()) continue;
      if (first.empty()) {
        first = list;
        continue;
      }
      lines.push_back(
          fmt::format("{}: universal_checkpoint_info: {} and {} both name {}, which can be put "
                      "together in one of these ways only",
                      file, first, list, unishard::quote(tensor.fqn)));
      return;
    }
  }
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
