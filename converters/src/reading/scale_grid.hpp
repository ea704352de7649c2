#pragma once
// How the scales of a weight are spread over its elements.
// Thread safety: values and pure functions.
#include "unishard/format/tensor_info.hpp"

#include "reading/quantization_config.hpp"

#include <cstdint>

namespace unishard::converters {

/// On each axis of a weight, `block` elements share one of `grid` scales.
struct ScaleGrid {
  Shape block, grid;
};

/// Returns the grid of a weight whose scales have the shape `scales`: one for all, one for each
/// index of axis 0, or on each axis one for all, for each index or for each block.
/// Throws: Corrupt, naming `weight`, when the shapes do not fit each other, or when the
/// configuration must tell the size of the blocks and does not.
ScaleGrid scale_grid(const TensorInfo& weight, const Shape& scales,
                     const QuantizationConfig& config);

/// Returns the grid of a matrix whose columns belong to groups in any order:
/// scales for each group, and for each row or for all.
/// Throws: Corrupt, naming `weight`, when the shapes do not fit each other.
ScaleGrid grouped_grid(const TensorInfo& weight, const Shape& scales);

/// Returns the grid of a weight whose blocks have the shape `block`.
/// Throws: Corrupt, naming `weight`, when the weight is not made of such blocks or `scales` is
/// not the number of its blocks.
ScaleGrid block_grid(const TensorInfo& weight, const Shape& block, std::uint64_t scales);

}  // namespace unishard::converters
