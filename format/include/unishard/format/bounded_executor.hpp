#pragma once
// The bounded executor: runs a list of pieces of work on a few threads, each with one reusable
// buffer. Memory is threads * buffer_bytes, whatever the total is. The first failure stops the rest
// and is rethrown.
#include "unishard/format/observer.hpp"
#include "unishard/format/partition.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace unishard {

struct TransferOptions {
  unsigned threads = 2;
  std::uint64_t buffer_bytes = std::uint64_t{4} << 20;  ///< per thread
  Observer* observer = nullptr;  ///< may be null; told the bytes of each finished piece

  /// As many bytes per buffer as `memory_bytes` allows (an eighth of it over all threads), 64 KiB
  /// to 8 MiB.
  static TransferOptions within(std::uint64_t memory_bytes, unsigned threads);
};

/// The last element of `tensor` up to `element` where a piece is best cut.
using Boundary = std::function<std::uint64_t(std::uint32_t tensor, std::uint64_t element)>;

/// Cuts fragments so that none needs more than `buffer_bytes`, keeping order; at boundaries, where
/// pieces stay longer than half of a buffer.
std::vector<Fragment> cut_fragments(const Catalog& catalog, std::span<const Fragment> fragments,
                                    std::uint64_t buffer_bytes, const Boundary& boundary = {});

/// Calls work(index, buffer) once for every index below `count`, in increasing order per thread.
/// `work` returns the bytes it did. Throws what the first failing call threw, after all threads
/// have stopped.
void run_bounded(
    std::size_t count, const TransferOptions& options,
    const std::function<std::uint64_t(std::size_t index, std::span<std::byte> buffer)>& work);

}  // namespace unishard
