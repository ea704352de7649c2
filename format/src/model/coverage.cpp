// With boxes, the check is exact arithmetic on their corners. Let f count how often each element is
// held: the sum of the parts' indicator functions. On one axis, the indicator of [a, b) is the
// running sum of +1 at a and -1 at b; on several axes, that of a box is the running sum, along
// every axis, of +1 or -1 at its corners. Running sums can be undone, so f is 1 on the whole tensor
// exactly when the corners of all parts sum up to those of the tensor. A range is the difference of
// two prefixes, [0, end) less [0, begin), and a prefix is one box per axis.
//
// Axes that no box cuts are merged with the axis before them. Items at the same coordinate of the
// first axis are summed by recursion over the other axes, so that memory stays linear. The first
// corner (row-major) whose sum is wrong is the first wrong element: the running sums before it are
// right. By symmetry, the last wrong corner is the one behind the last wrong element on every axis.
#include "unishard/format/coverage.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/memory.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard {
namespace {

/// A box, added or subtracted.
struct Item {
  std::uint64_t box = 0;
  std::int32_t sign = 0;
};

/// Axes as the boxes of a tensor cut it.
class MergedAxes {
 public:
  MergedAxes(const Shape& shape, std::span<const HeldPart> parts, const std::string& label)
      : shape_(shape) {
    std::vector<bool> cuts(shape.size());
    for (const HeldPart& part : parts) {
      for (std::size_t i = 0; i < part.box.sizes.size(); ++i)
        if (part.box.sizes[i] != shape[i]) cuts[i] = true;
    }
    const auto count = static_cast<std::size_t>(std::ranges::count(cuts, true));
    if (count > kCutAxesMax) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: its boxes are cut along {} axes; at most {} are allowed", label, count,
                        kCutAxesMax));
    }
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (i == 0 || cuts[i]) {
        starts_.push_back(i);
        dimensions_.push_back(shape[i]);
      } else {
        dimensions_.back() *= shape[i];
      }
    }
    strides_.assign(dimensions_.size(), 1);
    for (std::size_t i = strides_.size() - 1; i > 0; --i)
      strides_[i - 1] = strides_[i] * dimensions_[i];
  }

  std::size_t count() const { return dimensions_.size(); }
  std::uint64_t dimension(std::size_t axis) const { return dimensions_[axis]; }
  std::uint64_t stride(std::size_t axis) const { return strides_[axis]; }
  /// Returns the elements of the tensor for each index of the axis's first original axis.
  std::uint64_t within(std::size_t axis) const { return dimensions_[axis] / shape_[starts_[axis]]; }
  std::size_t start(std::size_t axis) const { return starts_[axis]; }

 private:
  const Shape& shape_;
  std::vector<std::size_t> starts_;  ///< first original axis of each
  std::vector<std::uint64_t> dimensions_, strides_;
};

/// Memory for each axis of an item: its bounds, and its two corners and place in a group while the
/// recursion is at this axis.
constexpr std::uint64_t kBytesPerAxis = 16 + 2 * 24 + sizeof(Item);

class CornerSum {
 public:
  explicit CornerSum(const MergedAxes& axes) : axes_(axes), at_(axes.count()) {}

  /// Adds the indices [begin, end) on every axis.
  void add(std::span<const std::uint64_t> begin, std::span<const std::uint64_t> end, int sign) {
    items_.push_back({bounds_.size() / (2 * axes_.count()), sign});
    bounds_.insert(bounds_.end(), begin.begin(), begin.end());
    bounds_.insert(bounds_.end(), end.begin(), end.end());
  }

  void add_box(BoxView box, int sign) {
    std::vector<std::uint64_t> begin(axes_.count()), end(axes_.count());
    for (std::size_t axis = 0; axis < axes_.count(); ++axis) {
      const std::size_t i = axes_.start(axis);
      begin[axis] = box.offsets[i] * axes_.within(axis);
      end[axis] = (box.offsets[i] + box.sizes[i]) * axes_.within(axis);
    }
    add(begin, end, sign);
  }

  /// Adds the elements [0, count).
  void add_prefix(std::uint64_t count, int sign) {
    std::vector<std::uint64_t> begin(axes_.count()), end(axes_.count());
    for (std::size_t i = 0; i < axes_.count(); ++i) end[i] = axes_.dimension(i);
    for (std::size_t axis = 0; axis < axes_.count(); ++axis) {
      const std::uint64_t index = count / axes_.stride(axis);
      count %= axes_.stride(axis);
      end[axis] = index;
      if (index != 0) add(begin, end, sign);
      begin[axis] = index, end[axis] = index + 1;
    }
  }

  /// The first corner, or the last one, whose sum is not 0.
  struct Wrong {
    std::uint64_t element = 0;  ///< of the first corner, or of the one before it on every axis
    std::int64_t sum = 0;
  };
  std::optional<Wrong> first_wrong() { return wrong(items_, 0, false); }
  std::optional<Wrong> last_wrong() { return wrong(items_, 0, true); }

 private:
  struct Corner {
    std::uint64_t index = 0;
    Item item;
  };

  std::optional<Wrong> wrong(std::span<const Item> items, std::size_t axis, bool from_behind) {
    if (axis == axes_.count()) {
      std::int64_t sum = 0;
      for (const Item& item : items) sum += item.sign;
      if (sum == 0) return std::nullopt;
      std::uint64_t element = 0;
      for (std::size_t i = 0; i < axis; ++i)
        element += (at_[i] - (from_behind ? 1 : 0)) * axes_.stride(i);
      return Wrong{element, sum};
    }
    std::vector<Corner> corners;
    corners.reserve(2 * items.size());
    for (const Item& item : items) {
      const std::size_t row = item.box * 2 * axes_.count() + axis;
      corners.push_back({bounds_[row], item});
      corners.push_back({bounds_[row + axes_.count()], {item.box, -item.sign}});
    }
    std::ranges::sort(corners, [&](const Corner& a, const Corner& b) {
      return from_behind ? a.index > b.index : a.index < b.index;
    });
    std::vector<Item> group;
    for (auto corner = corners.begin(); corner != corners.end();) {
      at_[axis] = corner->index;
      group.clear();
      for (; corner != corners.end() && corner->index == at_[axis]; ++corner)
        group.push_back(corner->item);
      if (const auto found = wrong(group, axis + 1, from_behind)) return found;
    }
    return std::nullopt;
  }

  const MergedAxes& axes_;
  std::vector<Item> items_;
  std::vector<std::uint64_t> bounds_;  ///< per box: the beginnings on all axes, then the ends
  std::vector<std::uint64_t> at_;      ///< the corner that wrong() looks at
};

std::optional<CoverageFault> find_fault_of_ranges(std::uint64_t elements,
                                                  std::span<const HeldPart> parts) {
  std::uint64_t end = 0;
  for (const HeldPart& part : parts) {
    if (part.range.begin > end) return CoverageFault{{end, part.range.begin}, true};
    if (part.range.begin < end)
      return CoverageFault{{part.range.begin, std::min(end, part.range.end)}, false};
    end = part.range.end;
  }
  if (end != elements) return CoverageFault{{end, elements}, true};
  return std::nullopt;
}

}  // namespace

std::optional<CoverageFault> find_coverage_fault(const Shape& shape,
                                                 std::span<const HeldPart> parts,
                                                 const std::string& label) {
  const std::uint64_t elements = element_count(shape);
  if (std::ranges::all_of(parts, [](const HeldPart& part) { return part.box.empty(); }))
    return find_fault_of_ranges(elements, parts);
  const MergedAxes axes(shape, parts, label);
  const auto boxes = static_cast<std::uint64_t>(
      std::ranges::count_if(parts, [](const HeldPart& part) { return !part.box.empty(); }));
  const std::uint64_t items = boxes + 2 * axes.count() * (parts.size() - boxes + 1);
  MemoryBudget(label).charge(items * (axes.count() * kBytesPerAxis + sizeof(Item)));
  CornerSum sum(axes);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].box.empty()) {
      sum.add_box(parts[i].box, 1);
      continue;
    }
    ElementRange range = parts[i].range;
    while (i + 1 < parts.size() && parts[i + 1].box.empty() &&
           parts[i + 1].range.begin == range.end)
      range.end = parts[++i].range.end;
    sum.add_prefix(range.end, 1);
    sum.add_prefix(range.begin, -1);
  }
  sum.add_prefix(elements, -1);
  const auto first = sum.first_wrong();
  if (!first) return std::nullopt;
  return CoverageFault{{first->element, sum.last_wrong()->element + 1}, first->sum < 0, false};
}

}  // namespace unishard
