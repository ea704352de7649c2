#pragma once
// Runs a rule on host memory with the widest vectors of the processor. All widths give the same
// bits, so a cut of the arrays (threads, shards) does not matter either.
#include "optimizer/update_arrays.hpp"

#include <cstdint>
#include <span>

namespace unishard::trainer::detail {

enum class VectorWidth : std::uint8_t {
  Compiled,  ///< what the compiler's target has (SSE2 on x86-64)
  Avx2,
  Avx512,
};

/// Returns the widths that this processor and this build have, the narrowest first.
std::span<const VectorWidth> vector_widths();

/// Updates all elements from the calling thread. Thread-safe for disjoint arrays.
void update_on_host(const Rule& rule, const UpdateArrays& arrays,
                    VectorWidth width = vector_widths().back());

}  // namespace unishard::trainer::detail
