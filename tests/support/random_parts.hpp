#pragma once
// Cuts tensors into ranges and boxes at random.
#include "unishard/format/partition.hpp"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace unishard::test {

/// Returns a tensor of the state `weights`.
TensorInfo weight(std::string fqn, DType dtype, Shape shape);

/// Returns a shape of 1 to `axes_max` axes with at most `elements_max` elements.
Shape random_shape(std::mt19937_64& random, std::size_t axes_max, std::uint64_t elements_max);

/// Returns fragments of tensor `number` that hold each element once: the front is cut into ranges,
/// the rest into boxes, of which some are ranges. Sorted by their first elements.
std::vector<Fragment> random_parts(std::mt19937_64& random, std::uint32_t number,
                                   const TensorInfo& tensor, std::size_t cuts);

}  // namespace unishard::test
