#include "formats/deepspeed/universal_cut.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters {

bool erase_cut_patterns(Json& client_state) {
  if (!client_state.is_object() || client_state.erase(kCutPatterns) == 0) return false;
  if (client_state.empty()) client_state = nullptr;
  return true;
}

namespace deepspeed {
namespace {

[[noreturn]] void refuse_entry(std::string_view what) {
  raise(ErrorCode::Unsupported, fmt::format("client_state.{}: {}", kCutPatterns, what));
}

bool is_count(const Json& value) { return value.is_number_integer() && value >= 0; }

/// How many equal parts the size along the dimension of a cut tells: their number, or a list of
/// sizes; 0 when the sizes differ.
std::uint64_t equal_parts(const Json& size) {
  if (is_count(size)) return size.get<std::uint64_t>();
  if (!size.is_array() || size.empty()) refuse_entry("a sub-parameter has no size");
  const bool are_equal =
      std::ranges::all_of(size, [&](const Json& each) { return each == size[0]; });
  return are_equal ? size.size() : 0;
}

std::vector<std::uint64_t> sizes_of(const Json& list) {
  std::vector<std::uint64_t> sizes;
  for (const Json& size : list) {
    if (!is_count(size)) refuse_entry("the size of a sub-parameter is no number");
    sizes.push_back(size.get<std::uint64_t>());
  }
  return sizes;
}

}  // namespace

UniversalCuts::UniversalCuts(const Json& client_state) {
  if (!client_state.is_object()) return;
  const auto info = client_state.find(kCutPatterns);
  if (info == client_state.end() || !info->is_object()) return;
  read_list(*info, "tp_replicated_parameter_patterns", Replicated);
  read_list(*info, "parameter_to_average_patterns", Mean);
  read_list(*info, "parameter_with_2_sub_params_cat_dim_0", Halves);
  read_list(*info, "parameter_with_row_parallelism_patterns", Rows);
  read_list(*info, "vocabulary_parameter_patterns", Vocabulary);
  read_sub_parameters(*info);
}

void UniversalCuts::read_list(const Json& info, const char* key, List list) {
  const auto patterns = info.find(key);
  if (patterns == info.end()) return;
  if (!patterns->is_array()) refuse_entry(fmt::format("{} is no list", key));
  for (const Json& pattern : *patterns) {
    if (!pattern.is_string()) refuse_entry(fmt::format("{} holds what is no text", key));
    patterns_[list].add(pattern.get<std::string>(), 0);
  }
}

void UniversalCuts::read_sub_parameters(const Json& info) {
  const auto entries = info.find("parameter_with_sub_params");
  if (entries == info.end()) return;
  if (!entries->is_array()) refuse_entry("parameter_with_sub_params is no list");
  for (const Json& entry : *entries) {
    const bool is_entry = entry.is_object() && entry.value("patterns", Json()).is_array() &&
                          entry.value("shape", Json()).is_array() &&
                          is_count(entry.value("partition_dim", Json()));
    if (!is_entry) refuse_entry("parameter_with_sub_params holds what is no sub-parameter");
    const auto dimension = entry["partition_dim"].get<std::uint64_t>();
    if (dimension >= entry["shape"].size()) refuse_entry("a sub-parameter has no size");
    for (const Json& pattern : entry["patterns"]) {
      if (!pattern.is_string()) refuse_entry("parameter_with_sub_params holds what is no text");
      const Json& size = entry["shape"][dimension];
      SubParameterRule rule{.pattern = pattern.get<std::string>(),
                            .dimension = static_cast<std::uint32_t>(dimension),
                            .dimensions = entry["shape"].size(),
                            .count = equal_parts(size),
                            .sizes = {}};
      if (rule.count == 0) rule.sizes = sizes_of(size);
      sub_parameter_patterns_.add(rule.pattern, sub_parameters_.size());
      sub_parameters_.push_back(std::move(rule));
    }
  }
}

UniversalCut UniversalCuts::cut_of(const std::string& fqn) const {
  const auto matches = [&](List list) { return !patterns_[list].find(fqn).empty(); };
  // In the order of DeepSpeed's converter; the ranks have the first two kinds whole.
  UniversalCut cut;
  if (matches(Replicated) || matches(Mean))
    return {.is_vocabulary = matches(Vocabulary), .is_whole = true};
  if (matches(Halves)) {
    cut.sub_parameters = 2;
  } else if (const SubParameterRule* rule = sub_parameters_of(fqn)) {
    cut = {.dimension = rule->dimension, .sub_parameters = rule->count};
    if (cut.sub_parameters == 0) {
      raise(ErrorCode::Unsupported,
            fmt::format("{} consists of parts of different sizes", unishard::quote(fqn)));
    }
  } else if (matches(Rows)) {
    cut.dimension = 1;
  }
  cut.is_vocabulary = matches(Vocabulary);
  return cut;
}

const SubParameterRule* UniversalCuts::sub_parameters_of(const std::string& fqn) const {
  for (const List list : {Replicated, Mean, Halves}) {
    if (!patterns_[list].find(fqn).empty()) return nullptr;
  }
  const auto found = sub_parameter_patterns_.find(fqn);
  return found.empty() ? nullptr : &sub_parameters_[found.front()];
}

bool UniversalCuts::describes(const std::string& fqn) const {
  const auto matches = [&](const NamePatterns& list) { return !list.find(fqn).empty(); };
  return std::ranges::any_of(patterns_, matches) || matches(sub_parameter_patterns_);
}

bool UniversalCuts::empty() const {
  return sub_parameters_.empty() && std::ranges::all_of(patterns_, &NamePatterns::empty);
}

void write_cut(torch::PickleWriter& pickle, const UniversalCut& cut) {
  pickle.str("cat_dim");
  pickle.integer(cut.dimension);
  if (cut.sub_parameters > 1) {
    pickle.str("param_n_sub_params");
    pickle.integer(static_cast<std::int64_t>(cut.sub_parameters));
  }
  if (cut.is_vocabulary) {
    pickle.str("vocab_tensor");
    pickle.boolean(true);
  }
}

}  // namespace deepspeed
}  // namespace unishard::converters
