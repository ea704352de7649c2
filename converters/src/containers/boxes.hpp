#pragma once
// Boxes of a row-major tensor: maps a chunk that was cut on any dimension to the tensor's element
// numbers.
// Thread safety: values and pure functions.
#include "unishard/format/tensor_info.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace unishard::converters {

struct Box {
  Shape offsets, sizes;

  std::uint64_t elements() const { return element_count(sizes); }
  bool operator==(const Box&) const = default;
};

/// Checks that the box has the dimensions of a tensor of `shape` and lies inside it.
/// Throws: Corrupt, with a message that begins with `what`.
void check_inside(const Shape& shape, const Box& box, const std::string& what);

/// Checks that the boxes, none of them empty, cover a tensor of `shape` exactly: inside it, no
/// element twice, none left out.
/// Throws: Corrupt, with a message that begins with `what`.
/// Complexity: O(n log n) for n boxes.
void check_cover(const Shape& shape, const std::vector<const Box*>& boxes, const std::string& what);

/// Returns the number of elements of the box that come before element `index` of the tensor,
/// row-major.
std::uint64_t count_before(const Shape& shape, const Box& box, std::uint64_t index);

/// Returns elements `range` of a row-major tensor as boxes, in order: at most two per dimension
/// plus one.
std::vector<Box> boxes_of(const Shape& shape, ElementRange range);

/// Elements of the box that are consecutive in the tensor.
struct Run {
  std::uint64_t tensor_first = 0, box_first = 0, count = 0;
};

/// Calls `use(Run)` for the elements `range` of the box (numbered within the box), in order.
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

  Shape offsets_, sizes_, strides_;  // sizes_.back() is the number of elements of a run
};

}  // namespace unishard::converters
