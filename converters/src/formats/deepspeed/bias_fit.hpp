#pragma once
// Finds matrices that do not fit the biases beside them: one that was put together along the wrong
// dimension has neither as many rows nor as many columns as its bias has elements.
// Thread safety: a pure function.
#include "unishard/format/catalog.hpp"

#include <cstdint>
#include <vector>

namespace unishard::converters::deepspeed {

struct BiasMisfit {
  const TensorInfo* weight = nullptr;
  std::uint64_t bias = 0;  ///< elements of the bias
};

/// Returns the masters and weights called `<layer>.weight` that do not fit `<layer>.bias`.
/// Lifetime: `catalog` must outlive the result.
std::vector<BiasMisfit> bias_misfits(const Catalog& catalog);

}  // namespace unishard::converters::deepspeed
