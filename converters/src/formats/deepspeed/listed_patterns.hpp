#pragma once
// The lists of patterns in universal_checkpoint_info, and which of their patterns say something of
// a model.
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed {

/// Keys whose values are lists of patterns that say how a tensor was cut, or that it was not.
inline constexpr std::array<std::string_view, 5> kPatternLists = {
    "tp_replicated_parameter_patterns", "parameter_to_average_patterns",
    "parameter_with_2_sub_params_cat_dim_0", "parameter_with_row_parallelism_patterns",
    "vocabulary_parameter_patterns"};
/// Key of a list of objects, each with `patterns`.
inline constexpr const char* kSubParameterList = "parameter_with_sub_params";
/// The other keys that rules may have. What the stages of a pipeline have alike is read from the
/// first in any case.
inline constexpr std::array<std::string_view, 6> kOtherKeys = {
    kSubParameterList,
    "sub_param_shard_widths",
    "original_vocab_size",
    "universal_checkpoint_version",
    "pipeline_replicated_parameter_patterns",
    "autotp_unsupported_parameter_patterns"};

struct ListedPattern {
  std::string list, pattern;
};

/// Returns the patterns in `info` that match no name in the catalog. What is no list of texts is
/// skipped.
/// Throws: Unsupported for a pattern that is not read, and for too many.
std::vector<ListedPattern> unmatched_patterns(const Json& info, const Catalog& catalog);
/// Adds lines that name the first of these patterns and count the others. `file` has them.
void say_unmatched(const std::vector<ListedPattern>& unmatched, const std::string& file,
                   std::vector<std::string>& lines);
/// Does so for the patterns in the catalog's client state, where they can be read.
void say_unmatched_of(const Catalog& catalog, const std::string& file,
                      std::vector<std::string>& lines);
/// Adds a line for a parameter that two of the lists say different things of, and for a size of the
/// vocabulary that no list of its tables goes with. `file` has them.
/// Throws: as unmatched_patterns() does.
void say_contradictions(const Json& info, const Catalog& catalog, const std::string& file,
                        std::vector<std::string>& lines);

/// Returns what rules of the user's may have of `info`, without these patterns.
Json without_patterns(const Json& info, const std::vector<ListedPattern>& unmatched);

}  // namespace unishard::converters::deepspeed
