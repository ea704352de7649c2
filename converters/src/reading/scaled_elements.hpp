#pragma once
// Weights of which each element is a narrow number times a scale that a block of elements shares:
// value = (number - zero point) * scale * factor, computed in float32 from left to right.
#include "unishard/format/tensor_info.hpp"

#include "reading/quantized_weight.hpp"
#include "reading/scale_grid.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace unishard::converters {

struct ScaledElements {
  std::size_t numbers = 0, scales = 0;     ///< tensors of the source
  std::optional<std::size_t> zero_points;  ///< has as many elements as `scales`
  /// For each index of the last axis, the index of its scales there (read_group_indices()), where
  /// columns with the same scales do not lie together; the grid's block of that axis means nothing.
  std::optional<std::size_t> groups;
  ScaleGrid grid;
  float factor = 1;
};

/// Returns whether numbers of this type may be those of a weight in float8; exponents are not.
bool is_float8(DType dtype);

/// Checks that scales of this type are understood: floating-point numbers, or exponents (E8M0).
/// Throws: Unsupported for every other type.
void require_scale_type(const TensorInfo& scales);

/// Returns the tensor `groups` of the source, of which ScaledElements tells; empty when one of its
/// elements is -1, with which compressed-tensors says that columns lie in their order.
/// Throws: Corrupt when an element is not an index below `count`, or when the groups differ in
/// size; Unsupported when it is not of integers.
std::vector<std::uint32_t> read_group_indices(const Source& source, std::size_t groups,
                                              std::uint64_t count);

std::shared_ptr<const QuantizedValues> make_scaled_elements(ScaledElements elements);

}  // namespace unishard::converters
