#include "reading/scaled_elements.hpp"

#include "unishard/converters/dtype_cast.hpp"
#include "unishard/format/error.hpp"

#include "reading/named_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unishard::converters {
namespace {

/// So many scales are always read at once.
constexpr std::uint64_t kFewScales = std::uint64_t{1} << 16;

bool is_exponent(DType dtype) { return dtype == DType::UInt8; }

/// The scales (or zero points) that a range of elements needs, and those between them.
struct Window {
  std::uint64_t first = 0;
  std::vector<float> scales, zero_points;
};

class ScaledValues final : public QuantizedValues {
 public:
  explicit ScaledValues(ScaledElements elements) : elements_(std::move(elements)) {
    const Shape& grid = elements_.grid.grid;
    strides_.assign(grid.size(), 1);
    for (std::size_t axis = grid.size(); axis-- > 1;)
      strides_[axis - 1] = strides_[axis] * std::max<std::uint64_t>(grid[axis], 1);
  }

  void read(const Source& source, ElementRange range, std::span<float> values) const override {
    const TensorInfo& numbers = source.catalog().tensors[elements_.numbers];
    read_floats(source, elements_.numbers, range, values);
    const Shape shape = numbers.shape.empty() ? Shape{1} : numbers.shape;
    const std::vector<std::uint32_t> groups = groups_of(source);
    const ElementRange wanted = scales_of(shape, range);
    if (wanted.size() <= std::max(range.size(), kFewScales))
      return scale(shape, range, load(source, wanted), groups, values);
    for_each_row(shape, range, [&](ElementRange part) {
      scale(shape, part, load(source, scales_of(shape, part)), groups,
            values.subspan(part.begin - range.begin, part.size()));
    });
  }

  std::uint64_t read_boundary(const Source& source, std::uint64_t element) const override {
    return source.read_boundary(elements_.numbers, element);
  }

 private:
  std::vector<std::uint32_t> groups_of(const Source& source) const {
    if (!elements_.groups) return {};
    return read_group_indices(source, *elements_.groups, elements_.grid.grid.back());
  }

  /// Returns bounds of the scales' numbers that elements `range` need.
  ElementRange scales_of(const Shape& shape, ElementRange range) const {
    std::uint64_t first = range.begin, last = range.end - 1, begin = 0, end = 1, size = 1;
    for (const std::uint64_t extent : shape) size *= extent;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      size /= shape[axis];
      const bool is_in_groups = elements_.groups && axis + 1 == shape.size();
      const std::uint64_t block = elements_.grid.block[axis];
      const std::uint64_t low = is_in_groups ? 0 : first / size / block;
      const std::uint64_t high =
          is_in_groups ? elements_.grid.grid.back() - 1 : last / size / block;
      end = begin + (high + 1) * strides_[axis];
      begin += low * strides_[axis];
      // Behind the first axis on which the ends differ, every index occurs.
      if (first / size != last / size) break;
      first %= size;
      last %= size;
    }
    return {begin, end};
  }

  Window load(const Source& source, ElementRange wanted) const {
    Window window{.first = wanted.begin, .scales = {}, .zero_points = {}};
    window.scales.resize(wanted.size());
    if (is_exponent(source.catalog().tensors[elements_.scales].dtype)) {
      std::vector<std::byte> bytes(wanted.size());
      source.read(elements_.scales, wanted, bytes);
      convert_elements(DType::Float8E8M0, bytes, DType::Float32,
                       std::as_writable_bytes(std::span(window.scales)));
    } else {
      read_floats(source, elements_.scales, wanted, window.scales);
    }
    if (!elements_.zero_points) return window;
    window.zero_points.resize(wanted.size());
    read_floats(source, *elements_.zero_points, wanted, window.zero_points);
    return window;
  }

  /// Calls `take` with each part of the range that lies in one row of the last axis.
  template <class Take>
  static void for_each_row(const Shape& shape, ElementRange range, const Take& take) {
    const std::uint64_t columns = shape.back();
    for (std::uint64_t at = range.begin; at < range.end;) {
      const std::uint64_t end = std::min(range.end, (at / columns + 1) * columns);
      take({at, end});
      at = end;
    }
  }

  /// Returns the number of the first scale of a row of the last axis.
  std::uint64_t first_scale(const Shape& shape, std::uint64_t row) const {
    std::uint64_t first = 0;
    for (std::size_t axis = shape.size() - 1; axis-- > 0;) {
      first += row % shape[axis] / elements_.grid.block[axis] * strides_[axis];
      row /= shape[axis];
    }
    return first;
  }

  void scale(const Shape& shape, ElementRange range, const Window& window,
             const std::vector<std::uint32_t>& groups, std::span<float> values) const {
    const std::uint64_t columns = shape.back(), block = elements_.grid.block.back();
    for_each_row(shape, range, [&](ElementRange row) {
      const std::uint64_t first = first_scale(shape, row.begin / columns) - window.first;
      for (std::uint64_t at = row.begin; at < row.end;) {
        const std::uint64_t column = at % columns;
        if (!groups.empty()) {
          scale_run(window, first + groups[column], values.subspan(at++ - range.begin, 1));
          continue;
        }
        const std::uint64_t end = std::min(row.end, at + std::min(block - column % block, columns));
        scale_run(window, first + column / block, values.subspan(at - range.begin, end - at));
        at = end;
      }
    });
  }

  void scale_run(const Window& window, std::uint64_t number, std::span<float> values) const {
    const float scale = window.scales[number];
    if (!window.zero_points.empty()) {
      for (float& value : values) value -= window.zero_points[number];
    }
    for (float& value : values) value *= scale;
    if (elements_.factor == 1) return;
    for (float& value : values) value *= elements_.factor;
  }

  const ScaledElements elements_;
  Shape strides_;  ///< of the grid
};

}  // namespace

bool is_float8(DType dtype) {
  return info(dtype).kind == Kind::Float && size_of(dtype) == 1 && dtype != DType::Float8E8M0;
}

void require_scale_type(const TensorInfo& scales) {
  if (info(scales.dtype).kind == Kind::Float || is_exponent(scales.dtype)) return;
  raise(ErrorCode::Unsupported,
        fmt::format("{}: scales of type {} are not read", scales.label(), name_of(scales.dtype)));
}

std::vector<std::uint32_t> read_group_indices(const Source& source, std::size_t groups,
                                              std::uint64_t count) {
  const TensorInfo& tensor = source.catalog().tensors[groups];
  if (tensor.dtype != DType::Int32 && tensor.dtype != DType::Int64)
    raise(ErrorCode::Unsupported,
          fmt::format("{}: groups of type {} are not read", tensor.label(), name_of(tensor.dtype)));
  // Float32 has every number that may be an index.
  std::vector<float> indices(tensor.elements());
  read_floats(source, groups, {0, indices.size()}, indices);
  if (std::ranges::count(indices, -1.0F) > 0) return {};
  std::vector<std::uint64_t> sizes(count);
  std::vector<std::uint32_t> found;
  found.reserve(indices.size());
  for (const float index : indices) {
    if (!(index >= 0 && index < static_cast<float>(count)))
      raise_tensor(tensor, fmt::format("group {}, and there are scales for {}", index, count));
    ++sizes[static_cast<std::size_t>(index)];
    found.push_back(static_cast<std::uint32_t>(index));
  }
  if (std::ranges::count(sizes, sizes.front()) != std::ssize(sizes))
    raise_tensor(tensor, "groups of several sizes");
  return found;
}

std::shared_ptr<const QuantizedValues> make_scaled_elements(ScaledElements elements) {
  return std::make_shared<const ScaledValues>(std::move(elements));
}

}  // namespace unishard::converters
