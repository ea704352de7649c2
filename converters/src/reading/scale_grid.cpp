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

/// The sizes of blocks that the configuration gives for an axis; only the last two have blocks.
std::vector<std::uint64_t> known_sizes(const QuantizationConfig& config, std::size_t axis,
                                       std::size_t axes) {
  std::vector<std::uint64_t> sizes;
  if (axes < 2 || axis + 2 < axes) return sizes;
  for (const BlockSize& block : config.blocks)
    sizes.push_back(axis + 1 == axes ? block.columns : block.rows);
  return sizes;
}

[[noreturn]] void raise_ambiguous(const TensorInfo& weight, std::uint64_t size,
                                  std::uint64_t scales, bool is_known) {
  raise(ErrorCode::Unsupported,
        fmt::format("{}: {} scales of {} elements do not tell the size of their blocks",
                    weight.label(), scales, size),
        is_known ? "several sizes of blocks in the model's quantization_config fit"
                 : "the model's config.json, which says weight_block_size or group_size, must lie "
                   "beside the weights");
}

/// The size of the blocks on an axis of `size` elements and `scales` scales; 0: none fits.
/// `known` are the sizes that the configuration gives.
std::uint64_t block_on_axis(const TensorInfo& weight, std::uint64_t size, std::uint64_t scales,
                            std::vector<std::uint64_t> known) {
  if (scales == 1) return std::max<std::uint64_t>(size, 1);
  if (scales == size) return 1;
  if (scales == 0 || scales > size) return 0;
  if (blocks_of(size, blocks_of(size, scales)) != scales) return 0;  // no size of blocks fits
  if (!known.empty()) {
    std::erase_if(known, [&](std::uint64_t block) { return blocks_of(size, block) != scales; });
    if (known.empty()) return 0;
    if (std::ranges::count(known, known.front()) < std::ssize(known))
      raise_ambiguous(weight, size, scales, true);
    return known.front();
  }
  const bool is_even = size % scales == 0 && size / scales == kUsualBlock;
  const bool is_usual = blocks_of(size, kUsualBlock) == scales;
  if (is_usual && (is_even || size % scales != 0)) return kUsualBlock;
  raise_ambiguous(weight, size, scales, false);
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
    const std::vector<std::uint64_t> known = known_sizes(config, axis, axes);
    // One scale, or one for each element, fits every size of blocks but the one that is given.
    if (config.is_of_blocks && !known.empty() &&
        blocks_of(shape[axis], known.front()) != grid[axis])
      raise_misfit(weight, scales);
    found.block.push_back(block_on_axis(weight, shape[axis], grid[axis], known));
    if (found.block.back() == 0) raise_misfit(weight, scales);
  }
  return found;
}

ScaleGrid grouped_grid(const TensorInfo& weight, const Shape& scales) {
  const Shape& shape = weight.shape;
  if (shape.size() != 2 || scales.size() != 2 || scales[1] == 0 || scales[1] > shape[1] ||
      (scales[0] != 1 && scales[0] != shape[0]))
    raise_misfit(weight, scales);
  return {.block = {scales[0] == 1 ? std::max<std::uint64_t>(shape[0], 1) : 1, 1}, .grid = scales};
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
