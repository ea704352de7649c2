#include "formats/hdf5/hyperslabs.hpp"

#include <algorithm>

namespace unishard::converters::hdf5 {

std::vector<Hyperslab> split_range(const Shape& shape, ElementRange range) {
  const std::size_t rank = shape.size();
  Shape inner(rank, 1);  // elements of one step in a dimension
  for (std::size_t i = rank - 1; i > 0; --i) inner[i - 1] = inner[i] * shape[i];
  std::vector<Hyperslab> slabs;
  while (!range.empty()) {
    // The outermost dimension in which a whole step fits from here.
    std::size_t outer = 0;
    while (range.begin % inner[outer] != 0 || inner[outer] > range.size()) ++outer;
    Hyperslab slab{Shape(rank), shape};
    for (std::size_t i = 0; i < rank; ++i) slab.start[i] = range.begin / inner[i] % shape[i];
    std::fill_n(slab.count.begin(), outer, 1);
    slab.count[outer] = std::min(shape[outer] - slab.start[outer], range.size() / inner[outer]);
    range.begin += slab.count[outer] * inner[outer];
    slabs.push_back(std::move(slab));
  }
  return slabs;
}

}  // namespace unishard::converters::hdf5
