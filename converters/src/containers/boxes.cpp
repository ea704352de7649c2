#include "containers/boxes.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace unishard::converters {
namespace {

/// Upper bound on the corners that check_cover() keeps: four million are 2^22 cuts of a matrix by
/// rows.
constexpr std::uint64_t kCorners = std::uint64_t{1} << 22;

/// Returns the dimensions that at least one box does not span: only in these can boxes be disjoint.
std::vector<std::size_t> cut_dimensions(const Shape& shape, const std::vector<const Box*>& boxes) {
  std::vector<std::size_t> cut;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (std::ranges::any_of(boxes, [&](const Box* box) { return box->sizes[d] != shape[d]; }))
      cut.push_back(d);
  }
  return cut;
}

using Corners = std::map<Shape, std::int64_t>;

/// Adds the box's corners; those with an odd number of upper ends are negated.
void add_corners(const std::vector<std::size_t>& dimensions, const Box& box, std::int64_t sign,
                 Corners& corners) {
  for (std::uint64_t upper = 0; upper < std::uint64_t{1} << dimensions.size(); ++upper) {
    Shape corner;
    std::int64_t weight = sign;
    for (std::size_t i = 0; i < dimensions.size(); ++i) {
      const std::size_t d = dimensions[i];
      const bool is_upper = (upper >> i & 1u) != 0;
      corner.push_back(box.offsets[d] + (is_upper ? box.sizes[d] : 0));
      if (is_upper) weight = -weight;
    }
    const auto found = corners.emplace(std::move(corner), 0).first;
    found->second += weight;
    if (found->second == 0) corners.erase(found);
  }
}

}  // namespace

void check_inside(const Shape& shape, const Box& box, const std::string& what) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) {
    raise(ErrorCode::Corrupt, fmt::format("{}: a chunk of {} dimensions, the tensor has {}", what,
                                          box.sizes.size(), shape.size()));
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (box.offsets[d] > shape[d] || box.sizes[d] > shape[d] - box.offsets[d]) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: the chunk at ({}) of size ({}) reaches out of the tensor of size ({})",
                        what, fmt::join(box.offsets, ", "), fmt::join(box.sizes, ", "),
                        fmt::join(shape, ", ")));
    }
  }
}

// A box is the sum, over its corners, of plus or minus the region "not below this corner". These
// regions are linearly independent, so the boxes cover the tensor exactly once if and only if all
// corners cancel against the tensor's own. Otherwise the lowest remaining corner is where the cover
// is wrong: covered too often when its weight is positive, too rarely when it is negative.
void check_cover(const Shape& shape, const std::vector<const Box*>& boxes,
                 const std::string& what) {
  for (const Box* box : boxes) check_inside(shape, *box, what);
  if (element_count(shape) == 0) return;
  const std::vector<std::size_t> cut = cut_dimensions(shape, boxes);
  if (cut.size() >= 22 || boxes.size() > kCorners >> cut.size()) {
    raise(ErrorCode::Unsupported, fmt::format("{}: {} chunks, cut in {} dimensions, are too many",
                                              what, boxes.size(), cut.size()));
  }
  Corners corners;
  add_corners(cut, {Shape(shape.size(), 0), shape}, -1, corners);
  for (const Box* box : boxes) add_corners(cut, *box, 1, corners);
  if (corners.empty()) return;
  Shape where(shape.size(), 0);
  for (std::size_t i = 0; i < cut.size(); ++i) where[cut[i]] = corners.begin()->first[i];
  raise(ErrorCode::Corrupt,
        fmt::format("{}: the element at ({}) is in {}", what, fmt::join(where, ", "),
                    corners.begin()->second > 0 ? "several chunks" : "no chunk"));
}

std::uint64_t count_before(const Shape& shape, const Box& box, std::uint64_t index) {
  if (shape.empty()) return index;
  std::uint64_t below = element_count(shape), inside = box.elements(), count = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    below /= shape[d];
    inside /= box.sizes[d];
    const std::uint64_t at = index / below;
    index %= below;
    if (at < box.offsets[d]) return count;
    const std::uint64_t rows = std::min(at - box.offsets[d], box.sizes[d]);
    count += rows * inside;
    if (rows == box.sizes[d]) return count;
  }
  return count;
}

namespace {

void add_boxes(const Shape& shape, std::size_t dimension, ElementRange range, Box at,
               std::vector<Box>& out) {
  if (range.empty()) return;
  if (dimension == shape.size()) return out.push_back(std::move(at));
  std::uint64_t row = 1;
  for (std::size_t d = dimension + 1; d < shape.size(); ++d) row *= shape[d];
  const auto take = [&](std::uint64_t first, std::uint64_t rows, ElementRange inside) {
    Box box = at;
    box.offsets[dimension] = first;
    box.sizes[dimension] = rows;
    if (inside.size() == row)
      return out.push_back(std::move(box));  // the other dimensions are whole
    add_boxes(shape, dimension + 1, inside, std::move(box), out);
  };
  const std::uint64_t first = range.begin / row, last = range.end / row;
  if (first == last) return take(first, 1, {range.begin % row, range.end % row});
  const std::uint64_t whole = first + (range.begin % row != 0 ? 1 : 0);
  if (whole != first) take(first, 1, {range.begin % row, row});
  if (whole < last) take(whole, last - whole, {0, row});
  if (range.end % row != 0) take(last, 1, {0, range.end % row});
}

}  // namespace

std::vector<Box> boxes_of(const Shape& shape, ElementRange range) {
  std::vector<Box> out;
  add_boxes(shape, 0, range, {Shape(shape.size(), 0), shape}, out);
  return out;
}

BoxRuns::BoxRuns(const Shape& shape, const Box& box) {
  // Trailing dimensions that the box spans are consecutive with the dimension before them.
  std::uint64_t stride = 1;
  std::size_t first = shape.size();
  while (first > 0 && box.sizes[first - 1] == shape[first - 1]) stride *= shape[--first];
  if (first == 0) {
    offsets_ = {0};
    sizes_ = {stride};
    strides_ = {1};
    return;
  }
  offsets_.assign(box.offsets.begin(), box.offsets.begin() + static_cast<std::ptrdiff_t>(first));
  sizes_.assign(box.sizes.begin(), box.sizes.begin() + static_cast<std::ptrdiff_t>(first));
  strides_.resize(first);
  offsets_.back() *= stride;
  sizes_.back() *= stride;
  strides_.back() = 1;
  stride *= shape[first - 1];
  for (std::size_t d = first - 1; d-- > 0; stride *= shape[d]) strides_[d] = stride;
}

Run BoxRuns::at_element(std::uint64_t box_element) const {
  const std::uint64_t in_run = box_element % sizes_.back();
  Run run{offsets_.back() + in_run, box_element, sizes_.back() - in_run};
  std::uint64_t rest = box_element / sizes_.back();
  for (std::size_t d = sizes_.size() - 1; d-- > 0;) {
    run.tensor_first += (offsets_[d] + rest % sizes_[d]) * strides_[d];
    rest /= sizes_[d];
  }
  return run;
}

}  // namespace unishard::converters
