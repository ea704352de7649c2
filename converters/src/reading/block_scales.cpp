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
  std::optional<std::size_t> groups;  ///< activation order: the group of each column
  std::optional<std::size_t> shape;   ///< that of packed numbers; here they have it themselves
};

Beside beside(const NamedTensors& tensors, const std::string& weight) {
  return {tensors.find(weight + "_scale_inv"), tensors.find(weight + "_scale"),
          tensors.find(weight + "_zero_point"), tensors.find(weight + "_g_idx"),
          tensors.find(weight + "_shape")};
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

/// Whether the groups tell of the columns anything but their order.
bool has_own_order(const NamedTensors& tensors, const TensorInfo& weight, std::size_t groups,
                   const Shape& scales) {
  constexpr std::uint64_t kMostColumns = std::uint64_t{1} << 22;
  if (weight.shape.size() != 2 || tensors[groups].shape != Shape{weight.shape[1]} ||
      weight.shape[1] > kMostColumns)
    raise_tensor(tensors[groups],
                 fmt::format("not one group for each column of {}", weight.label()));
  return !read_group_indices(tensors.source(), groups, grouped_grid(weight, scales).grid[1])
              .empty();
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
  const Shape& shape = tensors[scales].shape;
  const bool is_ordered = !found.groups || !has_own_order(tensors, weight, *found.groups, shape);
  ScaledElements elements{
      .numbers = tensor,
      .scales = scales,
      .zero_points = found.zero_point,
      .groups = is_ordered ? std::nullopt : found.groups,
      .grid = is_ordered ? scale_grid(weight, shape, config) : grouped_grid(weight, shape)};
  if (found.zero_point) require_same_count(tensors, *found.zero_point, scales);
  for (const auto& side : {found.zero_point, found.groups, found.shape}) {
    if (side) quantized.sides.push_back(*side);
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
