#pragma once
// Splits a range of row-major elements into boxes of an n-dimensional array.
// Thread safety: pure functions.
#include "unishard/format/tensor_info.hpp"

#include <vector>

namespace unishard::converters::hdf5 {

struct Hyperslab {
  Shape start;
  Shape count;
};

/// Returns boxes whose elements, box after box in row-major order, are those of `range`; at most 2
/// * dimensions - 1 boxes.
/// Pre: `range` lies within `shape`, which has at least one dimension.
std::vector<Hyperslab> split_range(const Shape& shape, ElementRange range);

}  // namespace unishard::converters::hdf5
