#pragma once
// Boxes of a row-major tensor: how a chunk that was cut on any dimension lies in the tensor's own
// element numbers. Pure functions.
#include "unishard/format/tensor_info.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

struct Box {
  Shape offsets, sizes;

  std::uint64_t elements() const { return element_count(sizes); }
  bool operator==(const Box&) const = default;
};

/// Throws Corrupt (`what`: ...) unless the boxes, none of them empty, cover a tensor of `shape`
/// exactly: inside, no element twice, none left out. Linearithmic in their number.
void check_cover(const Shape& shape, const std::vector<const Box*>& boxes, const std::string& what);

/// Number of elements of the box that come before element `index` of the tensor, row-major.
std::uint64_t count_before(const Shape& shape, const Box& box, std::uint64_t index);

/// Elements `range` of a row-major tensor as boxes, in order: at most two per dimension and one
/// more.
std::vector<Box> boxes_of(const Shape& shape, ElementRange range);

/// Elements of the box that are consecutive in the tensor.
struct Run {
  std::uint64_t tensor_first = 0, box_first = 0, count = 0;
};

/// Calls `use(Run)` for the box's elements `range` (counted in the box), in order.
class BoxRuns {
 public:
  BoxRuns(const Shape& shape, const Box& box);
  std::uint64_t run_elements() const { return sizes_.back(); }
  template <class Use>
  void operator()(ElementRange range, Use&& use) const {
    for (std::uint64_t at = range.begin; at < range.end;) {
      Run run = at_element(at);
      run.count = std::min(run.count, range.end - at);
      use(run);
      at += run.count;
    }
  }

 private:
  Run at_element(std::uint64_t box_element) const;

  Shape offsets_, sizes_, strides_;  // sizes_.back(): elements of a run
};

}  // namespace unishard::converters::dcp
