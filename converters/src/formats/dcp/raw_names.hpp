#pragma once
// Names of optimizer states that were saved without names: they are numbered in the order of the
// parameters.
#include "formats/dcp/state_dict.hpp"

#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

struct NamedShape {
  std::string name;
  Shape shape;
};

/// Returns the names of the parameters of several groups, of which only shapes and the order within
/// each group are known, one group after the other; nullopt unless exactly one subsequence of
/// `model` fits each group and no two groups have parameters of the same shape.
std::optional<std::vector<std::string>> only_fit(const std::vector<NamedShape>& model,
                                                 const std::vector<std::vector<Shape>>& groups);

}  // namespace unishard::converters::dcp
