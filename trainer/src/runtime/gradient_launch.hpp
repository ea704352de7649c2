#pragma once
// The launches of a device that together gather the gradients of one unit.
#include "device/launch_ranges.hpp"

#include <cstddef>
#include <span>

namespace unishard::trainer::detail {

/// A gradient in a device's memory, and the place of its elements in a flat array.
struct GradientSource {
  std::size_t begin = 0, count = 0;
  const void* values = nullptr;
};

/// Elements of the flat array, and the gradient that they get; null: zeros.
struct GradientRange : LaunchRange {
  const void* values = nullptr;
};
using GradientLaunch = LaunchRanges<GradientRange>;

/// Calls use(launch) for launches that together have all `elements` of a flat array or, with
/// `only_sources`, those of the sources: one for most units.
/// Pre: the sources are in order, do not overlap, and lie within the array.
template <class Use>
void for_each_gradient_launch(std::span<const GradientSource> sources, std::size_t elements,
                              bool only_sources, const Use& use) {
  GradientLaunch launch;
  const auto add = [&](std::size_t begin, std::size_t end, const void* values) {
    if (begin == end) return;
    if (launch.is_full()) {
      use(launch);
      launch = {};
    }
    GradientRange range;
    range.begin = begin;
    range.end = end;
    range.values = values;
    launch.add(range);
  };
  std::size_t done = 0;
  for (const GradientSource& source : sources) {
    if (!only_sources) add(done, source.begin, nullptr);
    done = source.begin + source.count;
    add(source.begin, done, source.values);
  }
  if (!only_sources) add(done, elements, nullptr);
  if (launch.count > 0) use(launch);
}

}  // namespace unishard::trainer::detail
