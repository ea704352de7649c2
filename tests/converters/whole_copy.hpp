#pragma once
// The plan of a copy that leaves no tensor out.
#include "unishard/converters/sink.hpp"

#include <cstddef>
#include <numeric>

namespace unishard::converters {

/// Returns the plan that gives each tensor of `target` the one of `source` with its number.
/// Lifetime: both must outlive the result.
inline CopyPlan whole_copy(const Source& source, const Catalog& target) {
  CopyPlan plan{.source = &source, .target = &target, .tensor_map = {}};
  plan.tensor_map.resize(target.tensors.size());
  std::iota(plan.tensor_map.begin(), plan.tensor_map.end(), std::size_t{0});
  return plan;
}

}  // namespace unishard::converters
