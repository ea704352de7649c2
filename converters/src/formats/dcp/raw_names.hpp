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

/// Returns the names of parameters of which only shapes and order are known; nullopt unless exactly
/// one subsequence of `model` fits.
std::optional<std::vector<std::string>> only_fit(const std::vector<NamedShape>& model,
                                                 const std::vector<Shape>& parameters);

}  // namespace unishard::converters::dcp
