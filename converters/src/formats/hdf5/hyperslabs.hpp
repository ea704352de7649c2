#pragma once
// A run of elements in row-major order as boxes of an n-dimensional array. Pure functions; any
// thread.
#include "unishard/format/tensor_info.hpp"

#include <vector>

namespace unishard::converters::hdf5 {

struct Hyperslab {
  Shape start;
  Shape count;
};

/// Boxes whose elements, box after box in row-major order, are those of `range`: at most
/// 2 * dimensions - 1. Pre: `range` lies within the shape; the shape has a dimension.
std::vector<Hyperslab> split_range(const Shape& shape, ElementRange range);

}  // namespace unishard::converters::hdf5
