#pragma once
// Classifies the keys of a state dict. The application chooses the outer keys ("model", "optim",
// "optimizers.0", none), so they are recognised by the keys below them.
// Thread safety: pure functions.
#include "core/nested_states.hpp"
#include "core/wrapped_names.hpp"
#include "formats/dcp/state_dict.hpp"

#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::dcp {

/// Usual names of the model in a state dict; the first ones are preferred.
inline constexpr std::array<std::string_view, 4> kUsualNames = {"model", "module", "state_dict",
                                                                "model_state_dict"};

/// Returns what precedes "state." and "param_groups" of each optimizer: "optim.", or "".
std::vector<std::string> optimizer_prefixes(const StateDict& state);

struct OptimizerKey {
  std::size_t optimizer = 0;  ///< index into the prefixes
  std::string fqn, state;
};
/// Parses `<prefix>state.<fqn>.<state>`, nested or flattened.
std::optional<OptimizerKey> parse_state_key(const std::string& key, const KeyPath& path,
                                            const std::vector<std::string>& prefixes);

struct GroupKey {
  std::size_t optimizer = 0;
  std::optional<std::uint64_t> group;  ///< <prefix>param_groups.<i>.<setting>
  std::string fqn;                     ///< flattened: <prefix>param_groups.<fqn>.<setting>
  std::string setting;                 ///< empty: the key is `<prefix>param_groups`, all of them
};
std::optional<GroupKey> parse_group_key(const std::string& key, const KeyPath& path,
                                        const std::vector<std::string>& prefixes);

/// Returns whether gradients of the type exist.
bool may_be_trained(DType dtype);

/// Returns the first parts, with a dot, or "" for the top level, below which a model may be: there
/// are at least `least` tensors that can be trained (the number of the optimizer's parameters, of
/// which a model cannot have fewer), not all of them single numbers, and no name tells that it is a
/// copy of the model ("ema") or something else ("rng_state").
std::set<std::string> possible_models(const std::vector<const TensorEntry*>& tensors,
                                      std::size_t least);

/// Returns what precedes the names of the model's parameters. `fqns` are the names that the
/// optimizer knows, which may begin inside of the model, `shapes` those of the parameters that it
/// knows by numbers, `least` as for possible_models(). Where several fit, the usual names come
/// first and those of copies ("ema", "teacher", "best") last; so does a model that lacks a few of
/// the names before a copy that has them. Adds a line to `remarks` where that does not decide, and
/// for a copy where something has a usual name.
std::string model_prefix(const std::vector<const TensorEntry*>& tensors,
                         const std::vector<std::string>& fqns, const std::vector<Shape>& shapes,
                         std::size_t least, std::vector<std::string>& remarks);
/// Returns whether a name tells that it is that of a copy of the model: an average, a teacher, an
/// earlier state.
bool names_a_copy(std::string_view name);
/// Returns those of several prefixes of models that are named best.
std::vector<std::string> best_models(std::vector<std::string> prefixes);
/// Returns the name below `prefix`, or nullopt for a tensor that is not the model's.
std::optional<std::string> model_name(const TensorEntry& tensor, std::string_view prefix);

/// Returns true for a key below a part of a state dict that is never a model: an optimizer, a
/// schedule, random states. A key with dots that is one part of its path is a module's, whatever
/// the module is called.
bool is_beside_models(std::string_view key, const KeyPath& path);

/// Returns the name, or "tensor" for the empty one, which no catalog has.
std::string plain_name(std::string name);

bool is_number(std::string_view text);

/// A number that is missing, and the next higher one that is there.
struct NumberGap {
  std::uint64_t missing = 0, there = 0;
};
/// Returns the first number from `first` on that is missing below one of `numbers`.
std::optional<NumberGap> find_gap(const std::set<std::uint64_t>& numbers, std::uint64_t first);

/// Returns true for the name of a parameter that has a number only: "state.3".
bool is_numbered(std::string_view fqn);
/// Returns whether a tensor of the model is a running statistic, which no optimizer updates.
bool is_statistic(std::string_view fqn);
/// Returns whether a tensor of the model, called `fqn` there, is known to be no parameter.
bool is_buffer(const StateDict& state, const TensorEntry& tensor, std::string_view fqn);

}  // namespace unishard::converters::dcp
