#pragma once
// Boxes of a tensor, and where the elements of a fragment lie in its tensor. A fragment is a range
// or a box. Its *own elements* are numbered from 0 in the order of their numbers in the tensor,
// which for a box is row-major.
// Thread safety: values and pure functions.
#include "unishard/format/tensor_info.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard {

/// The elements whose index on every axis i lies in [offsets[i], offsets[i] + sizes[i]).
struct Box {
  Shape offsets, sizes;

  bool operator==(const Box&) const = default;
};

/// A box whose numbers are elsewhere; without axes it stands for no box.
/// Lifetime: the numbers must outlive this object.
struct BoxView {
  std::span<const std::uint64_t> offsets, sizes;

  BoxView() = default;
  BoxView(std::span<const std::uint64_t> first, std::span<const std::uint64_t> extent)
      : offsets(first), sizes(extent) {}
  BoxView(const Box& box) : offsets(box.offsets), sizes(box.sizes) {}  // NOLINT(*-explicit-*)

  bool empty() const { return sizes.empty(); }
  /// Returns a copy of the numbers.
  Box owned() const;
};

/// Most axes along which the boxes of one tensor may be cut, that is, not span the axis.
inline constexpr std::size_t kCutAxesMax = 6;

/// Returns why `box` is not a box of a tensor of this shape; nullopt when it is one.
std::optional<std::string> box_problem(const Shape& shape, BoxView box);

/// Returns, for example, "[0:64, 128:256]".
std::string to_text(BoxView box);
/// Returns "elements 0 to 64" when `count` is the size of `bounds`, else for example "32 of the
/// elements 0 to 64".
std::string elements_text(ElementRange bounds, std::uint64_t count);

/// Maps the own elements of a fragment to the elements of its tensor.
class ElementMap {
 public:
  /// The elements of a range, or of a box of a tensor of this shape.
  /// Pre: box_problem(shape, box) is nullopt.
  explicit ElementMap(ElementRange range);
  ElementMap(const Shape& shape, BoxView box);
  /// The range when `box` is empty, else the box.
  ElementMap(const Shape& shape, ElementRange range, BoxView box)
      : ElementMap(box.empty() ? ElementMap(range) : ElementMap(shape, box)) {}

  /// Returns the number of own elements.
  std::uint64_t elements() const { return elements_; }
  /// Returns the first element in the tensor and the one behind the last.
  ElementRange bounds() const { return bounds_; }
  /// Returns how many own elements lie side by side in the tensor, from own element 0 on.
  std::uint64_t run_elements() const { return run_; }
  bool is_range() const { return run_ == elements_; }
  /// Returns the distance in the tensor between the beginnings of two neighbouring runs.
  /// Pre: !is_range().
  std::uint64_t row_elements() const { return row_.stride; }

  /// Returns the element of the tensor that is own element `own`.
  /// Pre: own < elements().
  std::uint64_t element(std::uint64_t own) const;
  /// Returns the number of own elements before `element` of the tensor.
  std::uint64_t own_before(std::uint64_t element) const;
  /// Returns the own elements that lie in `range` of the tensor; they are consecutive.
  ElementRange own_in(ElementRange range) const {
    return {own_before(range.begin), own_before(range.end)};
  }
  /// Returns the smallest range of the tensor that contains the own elements `own`.
  /// Pre: `own` is not empty and lies in [0, elements()).
  ElementRange bounds_of(ElementRange own) const {
    return {element(own.begin), element(own.end - 1) + 1};
  }
  /// Calls visit(first own element, their elements in the tensor) for each sequence of own elements
  /// in `own` that is one range of the tensor, in order.
  /// Pre: `own` lies in [0, elements()).
  template <class Visit>
  void each_run(ElementRange own, const Visit& visit) const;

 private:
  /// Neighbouring axes that the box spans behind a first one that it may cut.
  struct Axis {
    std::uint64_t offset = 0, size = 0, dimension = 0;
    std::uint64_t stride = 1;  ///< elements of the tensor between two indices
    std::uint64_t own = 1;     ///< own elements between two indices
  };

  std::vector<Axis> axes_;  ///< outermost first; empty for a range
  Axis row_;                ///< the innermost axis outside of the runs with several indices
  std::uint64_t elements_ = 0, run_ = 0;
  ElementRange bounds_;
};

template <class Visit>
void ElementMap::each_run(ElementRange own, const Visit& visit) const {
  const std::uint64_t rows = is_range() ? 1 : row_.size;
  while (!own.empty()) {
    std::uint64_t begin = element(own.begin), inside = own.begin % run_;
    for (std::uint64_t row = own.begin / run_ % rows; row < rows && !own.empty(); ++row) {
      const std::uint64_t count = std::min(own.size(), run_ - inside);
      visit(own.begin, ElementRange{begin, begin + count});
      own.begin += count;
      begin += row_.stride - inside;
      inside = 0;
    }
  }
}

}  // namespace unishard
