#pragma once
// Runs a list of work items on a few threads, each with one reusable buffer. Memory is threads *
// buffer_bytes, however many items there are.
#include "unishard/format/observer.hpp"
#include "unishard/format/partition.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace unishard {

struct TransferOptions {
  unsigned threads = 2;
  std::uint64_t buffer_bytes = std::uint64_t{4} << 20;  ///< bytes per thread
  /// Receives the bytes of each finished item; may be null.
  /// Lifetime: must outlive the run.
  Observer* observer = nullptr;
  /// Announces work to the observer, if there is one.
  void begin(std::string_view what, std::uint64_t total_bytes) const {
    if (observer != nullptr) observer->begin(what, total_bytes);
  }

  /// Reports bytes that are done to the observer, if there is one, which throws to stop the work.
  void advance(std::uint64_t bytes) const {
    if (observer != nullptr) observer->advance(bytes);
  }

  /// Returns options whose buffers together take an eighth of `memory_bytes`; each buffer has 64
  /// KiB to 8 MiB.
  static TransferOptions within(std::uint64_t memory_bytes, unsigned threads);
};

/// Returns the best element to split `tensor` at, at most `element`.
using Boundary = std::function<std::uint64_t(std::uint32_t tensor, std::uint64_t element)>;

/// Cuts fragments into pieces that fit a buffer of `buffer_bytes`, in the same order. A piece ends
/// at a boundary where that leaves it longer than half a buffer.
/// Pre: no fragment is a box.
std::vector<Fragment> cut_fragments(const Catalog& catalog, std::span<const Fragment> fragments,
                                    std::uint64_t buffer_bytes, const Boundary& boundary = {});

/// Calls work(index, buffer) once for every index below `count`; each thread takes indices in
/// increasing order. `work` returns the number of bytes it processed and has not reported itself.
/// With one thread, everything runs on the caller's thread.
/// Throws: the exception of the call that failed first, after all threads have stopped. No further
/// item is started after a failure.
void run_bounded(
    std::size_t count, const TransferOptions& options,
    const std::function<std::uint64_t(std::size_t index, std::span<std::byte> buffer)>& work);

}  // namespace unishard
