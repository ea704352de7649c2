#include "unishard/format/box.hpp"

#include <fmt/format.h>

namespace unishard {

Box BoxView::owned() const {
  return {{offsets.begin(), offsets.end()}, {sizes.begin(), sizes.end()}};
}

std::optional<std::string> box_problem(const Shape& shape, BoxView box) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size() || shape.empty()) {
    return fmt::format("a box of {} axes in a tensor of {}",
                       std::max(box.offsets.size(), box.sizes.size()), shape.size());
  }
  std::size_t cuts = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (box.sizes[i] == 0) return fmt::format("the box has no elements on axis {}", i);
    if (box.sizes[i] > shape[i] || box.offsets[i] > shape[i] - box.sizes[i]) {
      return fmt::format("the box has {} elements from {} on, on axis {}, which has {}",
                         box.sizes[i], box.offsets[i], i, shape[i]);
    }
    cuts += box.sizes[i] != shape[i];
  }
  if (cuts > kCutAxesMax)
    return fmt::format("the box is cut along {} axes; at most {} are allowed", cuts, kCutAxesMax);
  return std::nullopt;
}

std::string to_text(BoxView box) {
  std::string text;
  for (std::size_t i = 0; i < box.sizes.size(); ++i) {
    text +=
        fmt::format("{}{}:{}", i == 0 ? "[" : ", ", box.offsets[i], box.offsets[i] + box.sizes[i]);
  }
  return text + "]";
}

std::string elements_text(ElementRange bounds, std::uint64_t count) {
  const std::string some = count == bounds.size() ? "" : fmt::format("{} of the ", count);
  return fmt::format("{}elements {} to {}", some, bounds.begin, bounds.end);
}

ElementMap::ElementMap(ElementRange range)
    : elements_(range.size()), run_(range.size()), bounds_(range) {}

ElementMap::ElementMap(const Shape& shape, BoxView box) {
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const bool is_cut = box.sizes[i] != shape[i];
    if (axes_.empty() || is_cut) {
      axes_.push_back({box.offsets[i], box.sizes[i], shape[i]});
    } else {
      Axis& whole = axes_.back();
      whole.offset *= shape[i], whole.size *= shape[i], whole.dimension *= shape[i];
    }
  }
  for (std::size_t i = axes_.size() - 1; i > 0; --i) {
    axes_[i - 1].stride = axes_[i].stride * axes_[i].dimension;
    axes_[i - 1].own = axes_[i].own * axes_[i].size;
  }
  elements_ = axes_.front().own * axes_.front().size;
  std::uint64_t last = 0;
  for (const Axis& axis : axes_) {
    bounds_.begin += axis.offset * axis.stride;
    last += (axis.offset + axis.size - 1) * axis.stride;
  }
  bounds_.end = last + 1;
  run_ = bounds_.size() == elements_ ? elements_ : axes_.back().size;
  for (std::size_t i = axes_.size() - 1; i-- > 0 && run_ != elements_;) {
    if (axes_[i].size == 1) continue;
    row_ = axes_[i];
    break;
  }
}

std::uint64_t ElementMap::element(std::uint64_t own) const {
  if (is_range()) return bounds_.begin + own;
  std::uint64_t element = 0;
  for (const Axis& axis : axes_) {
    element += (axis.offset + own / axis.own) * axis.stride;
    own %= axis.own;
  }
  return element;
}

std::uint64_t ElementMap::own_before(std::uint64_t element) const {
  if (element <= bounds_.begin) return 0;
  if (element >= bounds_.end) return elements_;
  if (is_range()) return element - bounds_.begin;
  std::uint64_t before = 0;
  for (const Axis& axis : axes_) {
    const std::uint64_t index = element / axis.stride;
    element %= axis.stride;
    if (index < axis.offset) return before;
    if (index >= axis.offset + axis.size) return before + axis.size * axis.own;
    before += (index - axis.offset) * axis.own;
  }
  return before;
}

}  // namespace unishard
