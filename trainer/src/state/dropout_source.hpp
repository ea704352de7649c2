#pragma once
// From what dropout() draws on a thread.
#include <ATen/core/Generator.h>

#include <cstdint>
#include <map>

namespace unishard::trainer::detail {

/// How often each unit was used in the micro-batch, by its number. Every use has a generator of its
/// own, so that its masks do not depend on the uses before.
using UseCounts = std::map<std::uint64_t, std::uint64_t>;

/// Lifetime: what it refers to must live until the source is replaced.
struct DropoutSource {
  at::Generator* generator = nullptr;  ///< null: LibTorch's default one
  UseCounts* uses = nullptr;           ///< null: outside of micro-batches
};

/// Returns this thread's source.
DropoutSource dropout_source();
/// Sets it, and returns the former one.
DropoutSource exchange_dropout_source(DropoutSource source);

}  // namespace unishard::trainer::detail
