#pragma once
// Names of optimizer states that were saved without names: they are numbered in the order in which
// the optimizer got its parameters.
// Thread safety: pure functions.
#include "formats/dcp/state_dict.hpp"

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

struct NamedShape {
  std::string name;
  Shape shape;
};

/// The parameters of an optimizer, group after group, as the groups number them.
struct NumberedParameters {
  std::vector<std::string> numbers;
  std::vector<std::vector<std::optional<Shape>>> groups;  ///< nullopt: the parameter has no state
};
/// `shapes` are those of the states, by number.
NumberedParameters numbered_parameters(const std::vector<Json>& groups,
                                       const std::unordered_map<std::string, Shape>& shapes);

/// Returns the names in the groups ("param_names", torch 2.6 and later), group after group, without
/// the prefixes of wrappers; empty when a group has none.
std::vector<std::string> listed_names(const std::vector<Json>& groups);

/// Returns the listed names as the model has them; nullopt unless they differ and each one's shape
/// is that of its state. Without a model every list counts.
std::optional<std::vector<std::string>> fit_listed(std::vector<std::string> names,
                                                   const NumberedParameters& parameters,
                                                   const std::vector<NamedShape>& model);

/// Returns the names that fit in whatever order the optimizer got its parameters: each state's
/// shape is that of exactly one tensor of the model. `trained` is the number of parameters that all
/// optimizers of the model train: where the model has another number of tensors, some are buffers
/// or frozen, and one of these may have the shape of a parameter that is not there. A tensor that
/// has the usual name of a buffer may be one too. Returns nullopt in every other case.
std::optional<std::vector<std::string>> fit_different_shapes(const NumberedParameters& parameters,
                                                             const std::vector<NamedShape>& model,
                                                             std::size_t trained);

/// Returns the only names that fit if the parameters are numbered in the model's order: exactly one
/// subsequence of `model` has the shapes of each group, and no two groups share a shape. If some
/// parameters have no state, there must be one group with as many parameters as the model has.
/// Returns nullopt when no names or several fit.
std::optional<std::vector<std::string>> fit_by_shape(const NumberedParameters& parameters,
                                                     const std::vector<NamedShape>& model);

}  // namespace unishard::converters::dcp
