#pragma once
// Finds the model of each of several optimizers by names.
// Thread safety: pure functions.
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::dcp {

/// Returns whether the keys of an optimizer and of a model tell that they belong together:
/// "opt_g." and "gen.", "critic_optimizer." and "critic.", "optimizers.0." and "models.0.".
bool name_one_model(std::string_view optimizer_prefix, std::string_view model_prefix);

/// A model that an optimizer may have, and the parameters that it would then have there.
struct ModelOption {
  std::string model;  ///< prefix of its keys
  std::set<std::string> parameters;
};

/// Returns the model of each optimizer: the only one that is left when no parameter has two
/// optimizers, or the only one of these with a name like the optimizer's. Returns nullopt when that
/// leaves a choice to any optimizer, or nothing.
std::optional<std::vector<std::string>> match_models(
    const std::vector<std::string>& optimizer_prefixes,
    const std::vector<std::vector<ModelOption>>& options);

}  // namespace unishard::converters::dcp
