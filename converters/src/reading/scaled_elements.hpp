#pragma once
// Weights of which each element is a narrow number times a scale that a block of elements shares:
// value = (number - zero point) * scale * factor, computed in float32 from left to right.
#include "unishard/format/tensor_info.hpp"

#include "reading/quantized_weight.hpp"
#include "reading/scale_grid.hpp"

#include <cstddef>
#include <memory>
#include <optional>

namespace unishard::converters {

struct ScaledElements {
  std::size_t numbers = 0, scales = 0;     ///< tensors of the source
  std::optional<std::size_t> zero_points;  ///< has as many elements as `scales`
  ScaleGrid grid;
  float factor = 1;
};

/// Checks that scales of this type are understood: floating-point numbers, or exponents (E8M0).
/// Throws: Unsupported for every other type.
void require_scale_type(const TensorInfo& scales);

std::shared_ptr<const QuantizedValues> make_scaled_elements(ScaledElements elements);

}  // namespace unishard::converters
