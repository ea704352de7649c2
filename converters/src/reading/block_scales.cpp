#include "unishard/format/error.hpp"

#include "reading/quantizers.hpp"
#include "reading/scaled_elements.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace unishard::converters {
namespace {

/// The tensors beside a weight. The scales are those that quantizers name after the weight
/// (`<weight>_scale`), or what serves as such.
struct Beside {
  std::optional<std::size_t> scale_inv, scale, zero_point;
  std::optional<std::size_t> groups;  ///< activation order: the group of each column
  std::optional<std::size_t> shape;   ///< that of packed numbers; here they have it themselves
  std::optional<std::size_t> marker;  ///< ComfyUI's, which says that float8 numbers have scales
  std::optional<BlockSize> block;     ///< which the name of the scales tells
};

constexpr BlockSize kDeepSeekBlock = {128, 128};

/// `scale` of DeepSeek's own programs for inference (inference/convert.py and kernel.py of
/// DeepSeek-V3): for each block of 128 x 128, cut short at the ends.
std::optional<std::size_t> deepseek_scale(const NamedTensors& tensors, const TensorInfo& weight) {
  const auto found = tensors.find(fmt::format("{}scale", module_of(weight.fqn)));
  if (!found || weight.shape.size() != 2 || !weight.fqn.ends_with(".weight")) return std::nullopt;
  const auto blocks = [](std::uint64_t size, std::uint64_t block) {
    return size / block + (size % block == 0 ? 0 : 1);
  };
  const Shape expected = {blocks(weight.shape[0], kDeepSeekBlock.rows),
                          blocks(weight.shape[1], kDeepSeekBlock.columns)};
  return tensors[*found].shape == expected ? found : std::nullopt;
}

/// Looks for ComfyUI's `scale_weight`, one number, where an empty tensor `scaled_fp8` at the head
/// of the model says that such files have it (scaled_fp8_ops in comfy/ops.py).
void find_scale_weight(const NamedTensors& tensors, const TensorInfo& weight, Beside& found) {
  const std::string_view module = module_of(weight.fqn);
  const auto scale = tensors.find(fmt::format("{}scale_weight", module));
  if (!scale || tensors[*scale].elements() != 1 || !weight.fqn.ends_with(".weight")) return;
  for (std::string_view head = module; !found.marker;) {
    found.marker = tensors.find(fmt::format("{}scaled_fp8", head));
    if (head.empty()) break;
    head = module_of(head.substr(0, head.size() - 1));
  }
  if (found.marker) found.scale = scale;
}

/// Takes ComfyUI's `comfy_quant` for a marker beside `<weight>_scale` of one number; its other
/// kinds keep their scales in another order.
void find_comfy_quant(const NamedTensors& tensors, const TensorInfo& weight, Beside& found) {
  const auto marker = tensors.find(fmt::format("{}comfy_quant", module_of(weight.fqn)));
  if (marker && found.scale && tensors[*found.scale].elements() == 1) found.marker = marker;
}

Beside beside(const NamedTensors& tensors, const TensorInfo& weight) {
  const auto with = [&](std::string_view end) {
    return tensors.find(weight.fqn + std::string(end));
  };
  Beside found{.scale_inv = with("_scale_inv"),
               .scale = with("_scale"),
               .zero_point = with("_zero_point"),
               .groups = with("_g_idx"),
               .shape = with("_shape"),
               .marker = std::nullopt,
               .block = std::nullopt};
  if (!is_float8(weight.dtype)) return found;
  if (!found.scale_inv && !found.scale) find_scale_weight(tensors, weight, found);
  if (!found.scale_inv && !found.scale) {
    found.scale = deepseek_scale(tensors, weight);
    if (found.scale) found.block = kDeepSeekBlock;
  }
  if (!found.marker) find_comfy_quant(tensors, weight, found);
  return found;
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

Shape without_ones(const Shape& shape) {
  Shape kept;
  std::ranges::copy_if(shape, std::back_inserter(kept),
                       [](std::uint64_t size) { return size != 1; });
  return kept;
}

/// Whether the zero points lie in the order of the scales: in their shape, but for axes of size 1,
/// or as one list of as many. Another shape of as many elements would give them to other elements.
bool are_ordered_alike(const TensorInfo& points, const TensorInfo& scales) {
  if (points.elements() != scales.elements()) return false;
  return points.shape.size() < 2 || without_ones(points.shape) == without_ones(scales.shape);
}

void require_fitting(const TensorInfo& points, const TensorInfo& scales) {
  if (are_ordered_alike(points, scales)) return;
  raise_tensor(points, fmt::format("zero points of size ({}) do not fit scales of size ({})",
                                   fmt::join(points.shape, ", "), fmt::join(scales.shape, ", ")));
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
                         QuantizationConfig config) {
  const TensorInfo& weight = tensors[tensor];
  if (found.block) config.blocks = {*found.block};
  if (found.scale_inv && found.scale)
    raise_unknown(weight, "it has both weight_scale and weight_scale_inv");
  require_known_int8(weight, found, config);
  const std::size_t scales = found.scale_inv ? *found.scale_inv : *found.scale;
  require_scale_type(tensors[scales]);
  require_declared(config.declared, tensors, weight, scales, found.zero_point);
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
  if (found.zero_point) require_fitting(tensors[*found.zero_point], tensors[scales]);
  for (const auto& side : {found.zero_point, found.groups, found.shape, found.marker}) {
    if (side) quantized.sides.push_back(*side);
  }
  quantized.values = make_scaled_elements(std::move(elements));
  return quantized;
}

/// Which weights of compressed-tensors need zero points.
class ExpectedZeroPoints {
 public:
  ExpectedZeroPoints(const NamedTensors& tensors, const QuantizationConfig& config)
      : where_(config.zero_points) {
    if (where_ != QuantizationConfig::ZeroPoints::SameInAllLayers) return;
    constexpr std::string_view kEnd = "_zero_point";
    for (const std::size_t tensor : tensors.candidates()) {
      const std::string_view name = tensors[tensor].fqn;
      if (name.ends_with(kEnd))
        kinds_.insert(without_numbers(name.substr(0, name.size() - kEnd.size())));
    }
  }

  /// Throws: Corrupt where the weight, which has none, needs them.
  void require_none(const TensorInfo& weight) const {
    if (weight.dtype != DType::Int8) return;
    if (where_ == QuantizationConfig::ZeroPoints::Everywhere)
      raise_tensor(weight, "the configuration says that it has zero points, and they are missing");
    if (kinds_.contains(without_numbers(weight.fqn)))
      raise_tensor(weight, "the same weight of another layer has zero points, and this has none");
  }

 private:
  const QuantizationConfig::ZeroPoints where_;
  std::unordered_set<std::string> kinds_;  ///< without_numbers() of the weights that have them
};

}  // namespace

void find_block_scales(const NamedTensors& tensors, const QuantizationConfig& config,
                       QuantizedWeights& found) {
  const ExpectedZeroPoints zero_points(tensors, config);
  for (const std::size_t tensor : tensors.candidates()) {
    const TensorInfo& weight = tensors[tensor];
    if (!is_float8(weight.dtype) && weight.dtype != DType::Int8) continue;
    const Beside around = beside(tensors, weight);
    if (!around.scale_inv && !around.scale) continue;
    found.push_back(describe(tensors, tensor, around, config));
    if (!around.zero_point) zero_points.require_none(weight);
  }
}

}  // namespace unishard::converters
