#pragma once
// Stage 0 of a pipeline: whether the layers have the weights of all optimizer states, which have no
// names there.
#include "unishard/format/tensor_info.hpp"

#include "formats/deepspeed/module_files.hpp"

#include <cstddef>
#include <vector>

namespace unishard::converters::deepspeed {

/// The beginning of one parameter's state.
struct UnnamedState {
  Shape shape;
  std::vector<std::byte> first;  ///< bytes of its first elements
};

/// Returns how many parameters with states no layer has. A tied module has states on each of its
/// stages, in front of those of the layers, and one of them has the same values there.
std::size_t count_absent_weights(const std::vector<std::vector<UnnamedState>>& stages,
                                 const std::vector<std::vector<Shape>>& layers);

}  // namespace unishard::converters::deepspeed
