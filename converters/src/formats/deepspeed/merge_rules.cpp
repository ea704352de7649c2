#include "formats/deepspeed/merge_rules.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/error.hpp"

#include "containers/pickle_json.hpp"
#include "formats/deepspeed/bias_fit.hpp"
#include "formats/deepspeed/listed_patterns.hpp"
#include "formats/deepspeed/name_pattern.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

namespace unishard::converters::deepspeed {
namespace {

constexpr std::string_view kOption = "--merge-rules";
constexpr std::string_view kVocabulary = "vocabulary_parameter_patterns";

[[noreturn]] void refuse(const std::string& problem) {
  raise(ErrorCode::InvalidArgument, fmt::format("{}: {}", kOption, problem),
        fmt::format("the rules are an object with the keys {} and {}",
                    fmt::join(kPatternLists, ", "), fmt::join(kOtherKeys, ", ")));
}

void require_list(const Json& value, std::string_view key) {
  if (value.is_array()) return;
  refuse(fmt::format("{} is not a list", key));
}

void require_keys(const Json& rules) {
  if (!rules.is_object()) refuse("the rules are no object");
  for (const auto& [key, value] : rules.items()) {
    const bool is_known = std::ranges::find(kPatternLists, key) != kPatternLists.end() ||
                          std::ranges::find(kOtherKeys, key) != kOtherKeys.end();
    if (!is_known) refuse(fmt::format("there is no key {}", unishard::quote(key)));
  }
}

/// The number of rows of the vocabulary's tables, without the padding behind it.
void require_vocabulary(const Json& rules) {
  const auto rows = rules.find("original_vocab_size");
  if (rows == rules.end()) return;
  if (!rows->is_number_integer() || *rows < 0) refuse("original_vocab_size is no number of rows");
  if (!rules.contains(kVocabulary))
    refuse(fmt::format("original_vocab_size says nothing without {}, which name the tables",
                       kVocabulary));
}

}  // namespace

MergeRules::MergeRules(const Json& rules) : rules_(rules) {
  if (rules.is_null()) return;
  require_keys(rules);
  read_patterns(rules);
  if (patterns_.empty()) refuse("there is no pattern");
  require_vocabulary(rules);
  pickle_ = torch::pickle_of(rules, "the rules");
  try {
    const CutRules understood(pickle_->root(), std::string(kOption), rules_, true);
  } catch (const Error& error) {  // of what a checkpoint may hold, here the user's own
    raise(ErrorCode::InvalidArgument, error.what(),
          "`unishard formats --rules-schema` prints the form of the file");
  }
}

void MergeRules::read_patterns(const Json& rules) {
  const auto add = [&](std::string_view list, const Json& patterns) {
    require_list(patterns, list);
    for (const Json& pattern : patterns) {
      if (!pattern.is_string()) refuse(fmt::format("{} holds what is no text", list));
      patterns_.push_back({std::string(list), pattern.get<std::string>(), list != kVocabulary});
    }
  };
  for (const std::string_view list : kPatternLists) {
    if (rules.contains(list)) add(list, rules[list]);
  }
  if (!rules.contains(kSubParameterList)) return;
  require_list(rules[kSubParameterList], kSubParameterList);
  for (const Json& entry : rules[kSubParameterList]) {
    if (!entry.is_object() || !entry.contains("patterns") || entry["patterns"].empty())
      refuse(fmt::format("{} holds an entry without patterns", kSubParameterList));
    add(kSubParameterList, entry["patterns"]);
  }
}

CutRules MergeRules::cut_rules() {
  are_used_ = true;
  return {pickle_->root(), std::string(kOption), rules_, true};
}

CutRules MergeRules::cut_rules(const TorchFile& file, Notes& notes) {
  const auto own = present(file.root(), kCutPatterns);
  if (!pickle_) return {own, file.name()};
  if (own)
    notes.add(fmt::format("{}: its {} is not used, because --merge-rules is given", file.name(),
                          kCutPatterns));
  return cut_rules();
}

namespace {

void check_biases(const Catalog& catalog) {
  for (const BiasMisfit& misfit : bias_misfits(catalog)) {
    const std::string& name = misfit.weight->fqn;
    refuse(
        fmt::format("{} becomes ({}), which does not fit {}.bias of {}: one of the two has the "
                    "wrong rule",
                    unishard::quote(name), fmt::join(misfit.weight->shape, ", "),
                    name.substr(0, name.rfind('.')), misfit.bias));
  }
}

}  // namespace

void MergeRules::check(const Catalog& catalog, const std::string& where) const {
  if (!pickle_) return;
  if (!are_used_) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: {} is of no tensor-parallel run", kOption, where),
          "leave the option out: its tensors are whole");
  }
  check_patterns(catalog);
  check_biases(catalog);
}

void MergeRules::check_patterns(const Catalog& catalog) const {
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : catalog.tensors) names.insert(tensor.fqn);
  std::map<std::string_view, const Listed*> cut_by;
  for (const Listed& listed : patterns_) {
    const NamePattern pattern(listed.pattern);
    bool matches_any = false;
    for (const std::string_view name : names) {
      if (!pattern.matches(name)) continue;
      matches_any = true;
      if (!listed.is_exclusive) continue;
      const auto [other, is_new] = cut_by.emplace(name, &listed);
      if (!is_new && other->second->list != listed.list)
        refuse(fmt::format("{} is matched by {} of {} and by {} of {}", unishard::quote(name),
                           unishard::quote(other->second->pattern), other->second->list,
                           unishard::quote(listed.pattern), listed.list));
    }
    if (!matches_any)
      refuse(fmt::format("the pattern {} of {} matches no parameter",
                         unishard::quote(listed.pattern), listed.list));
  }
}

}  // namespace unishard::converters::deepspeed

namespace unishard::converters {

void set_cut_patterns(Catalog& catalog, const Json& rules) {
  deepspeed::MergeRules merge_rules(rules);
  merge_rules.cut_rules();  // checks that they are understood
  merge_rules.check(catalog, "the result");
  if (catalog.client_state.is_null()) catalog.client_state = Json::object();
  catalog.client_state[kCutPatterns] = rules;
}

}  // namespace unishard::converters
