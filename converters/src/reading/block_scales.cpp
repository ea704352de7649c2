#include "unishard/format/error.hpp"

#include "reading/quantizers.hpp"
#include "reading/scaled_elements.hpp"

#include <fmt/format.h>

#include <utility>

namespace unishard::converters {
namespace {

bool is_float8(DType dtype) {
  return info(dtype).kind == Kind::Float && size_of(dtype) == 1 && dtype != DType::Float8E8M0;
}

/// The tensors beside a weight, by what is added to its name.
struct Beside {
  std::optional<std::size_t> scale_inv, scale, zero_point;
};

Beside beside(const NamedTensors& tensors, const std::string& weight) {
  return {tensors.find(weight + "_scale_inv"), tensors.find(weight + "_scale"),
          tensors.find(weight + "_zero_point")};
}

[[noreturn]] void raise_unknown(const TensorInfo& weight, std::string_view what) {
  raise(ErrorCode::Unsupported, fmt::format("{}: {}", weight.label(), what));
}

/// int8 alone does not say how many numbers a byte holds.
void require_known_int8(const TensorInfo& weight, const Beside& found,
                        const QuantizationConfig& config) {
  if (weight.dtype != DType::Int8) return;
  if (found.scale_inv)
    raise_unknown(weight, "4-bit numbers packed in int8 beside weight_scale_inv are not read");
  if (config.method != "compressed-tensors")
    raise_unknown(weight,
                  fmt::format("int8 weights with scales are read of compressed-tensors, and the "
                              "quantization_config is {}",
                              config.method.empty() ? "missing" : config.method));
}

void require_same_count(const NamedTensors& tensors, std::size_t zero_points, std::size_t scales) {
  if (tensors[zero_points].elements() == tensors[scales].elements()) return;
  raise_tensor(tensors[zero_points],
               fmt::format("{} zero points for {} scales", tensors[zero_points].elements(),
                           tensors[scales].elements()));
}

QuantizedWeight describe(const NamedTensors& tensors, std::size_t tensor, const Beside& found,
                         const QuantizationConfig& config) {
  const TensorInfo& weight = tensors[tensor];
  if (found.scale_inv && found.scale)
    raise_unknown(weight, "it has both weight_scale and weight_scale_inv");
  require_known_int8(weight, found, config);
  const std::size_t scales = found.scale_inv ? *found.scale_inv : *found.scale;
  require_scale_type(tensors[scales]);
  QuantizedWeight quantized{.tensor = tensor,
                            .fqn = weight.fqn,
                            .dtype = DType::Float32,
                            .shape = weight.shape,
                            .sides = {scales},
                            .method = fmt::format("{} with scales", name_of(weight.dtype)),
                            .values = nullptr};
  ScaledElements elements{.numbers = tensor,
                          .scales = scales,
                          .zero_points = found.zero_point,
                          .grid = scale_grid(weight, tensors[scales].shape, config)};
  if (found.zero_point) {
    require_same_count(tensors, *found.zero_point, scales);
    quantized.sides.push_back(*found.zero_point);
  }
  quantized.values = make_scaled_elements(std::move(elements));
  return quantized;
}

}  // namespace

void find_block_scales(const NamedTensors& tensors, const QuantizationConfig& config,
                       QuantizedWeights& found) {
  for (const std::size_t tensor : tensors.candidates()) {
    const TensorInfo& weight = tensors[tensor];
    if (!is_float8(weight.dtype) && weight.dtype != DType::Int8) continue;
    const Beside around = beside(tensors, weight.fqn);
    if (around.scale_inv || around.scale)
      found.push_back(describe(tensors, tensor, around, config));
  }
}

}  // namespace unishard::converters
