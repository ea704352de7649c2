#include "reading/scale_grid.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include "reading/named_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unishard::converters {
namespace {

/// Most makers of models in float8 use blocks of 128 x 128.
constexpr std::uint64_t kUsualBlock = 128;

std::uint64_t blocks_of(std::uint64_t size, std::uint64_t block) {
  return size / block + (size % block == 0 ? 0 : 1);
}

std::string text_of(const Shape& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

[[noreturn]] void raise_misfit(const TensorInfo& weight, const Shape& scales) {
  raise_tensor(weight, fmt::format("scales of size {} do not fit a weight of size {}",
                                   text_of(scales), text_of(weight.shape)));
}

/// The size of the blocks on an axis of `size` elements and `scales` scales; 0: none fits.
/// `known` is what the configuration says about the axis.
std::uint64_t block_on_axis(const TensorInfo& weight, std::uint64_t size, std::uint64_t scales,
                            std::optional<std::uint64_t> known) {
  if (scales == 1) return std::max<std::uint64_t>(size, 1);
  if (scales == size) return 1;
  if (scales == 0 || scales > size) return 0;
  if (known) return blocks_of(size, *known) == scales ? *known : 0;
  const bool is_even = size % scales == 0 && size / scales == kUsualBlock;
  const bool is_usual = blocks_of(size, kUsualBlock) == scales;
  if (is_usual && (is_even || size % scales != 0)) return kUsualBlock;
  raise(ErrorCode::Unsupported,
        fmt::format("{}: {} scales of {} elements do not tell the size of their blocks",
                    weight.label(), scales, size),
        "the model's config.json, which says weight_block_size, must lie beside the weights");
}

/// What the configuration says about the last two axes.
std::optional<std::uint64_t> known_block(const QuantizationConfig& config, std::size_t axis,
                                         std::size_t axes) {
  if (!config.block || axes < 2 || axis + 2 < axes) return std::nullopt;
  return axis + 1 == axes ? config.block->columns : config.block->rows;
}

}  // namespace

ScaleGrid scale_grid(const TensorInfo& weight, const Shape& scales,
                     const QuantizationConfig& config) {
  if (!config.problem.empty())
    raise_tensor(weight, fmt::format("quantization_config: {}", config.problem));
  const Shape shape = weight.shape.empty() ? Shape{1} : weight.shape;
  const std::size_t axes = shape.size();
  Shape grid(axes, 1);
  if (scales.size() == axes) {
    grid = scales;
  } else if (scales.size() == 1 && scales[0] == shape[0]) {
    grid[0] = scales[0];
  } else if (element_count(scales) != 1) {
    raise_misfit(weight, scales);
  }
  ScaleGrid found{.block = {}, .grid = grid};
  for (std::size_t axis = 0; axis < axes; ++axis) {
    found.block.push_back(
        block_on_axis(weight, shape[axis], grid[axis], known_block(config, axis, axes)));
    if (found.block.back() == 0) raise_misfit(weight, scales);
  }
  return found;
}

ScaleGrid block_grid(const TensorInfo& weight, const Shape& block, std::uint64_t scales) {
  const bool fits = block.size() == weight.shape.size() && std::ranges::count(block, 0) == 0;
  ScaleGrid found{.block = block, .grid = {}};
  std::uint64_t blocks = 1;
  for (std::size_t axis = 0; fits && axis < block.size(); ++axis) {
    found.grid.push_back(blocks_of(weight.shape[axis], block[axis]));
    blocks = checked_mul(blocks, found.grid.back(), "the number of blocks");
    if (weight.shape[axis] % block[axis] != 0) blocks = 0;
  }
  if (!fits || blocks != scales)
    raise_tensor(weight, fmt::format("{} scales do not fit blocks of size {} and a weight of {}",
                                     scales, text_of(block), text_of(weight.shape)));
  return found;
}

}  // namespace unishard::converters
