#pragma once
// Deterministic split of work among processes: all processes compute the same split.
// Thread safety: pure functions.
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {

/// One process of several.
struct WorkSplit {
  std::uint32_t rank = 0, size = 1;
  /// The new_save_id() of one process, used in names; may be empty for a single process.
  std::string id = {};
};

/// Returns for each output whether it belongs to process share.rank. `bytes` are the outputs'
/// sizes; all processes get about the same number of bytes. A single output belongs to process 0.
std::vector<bool> owned(std::span<const std::uint64_t> bytes, const WorkSplit& share);

/// The bytes [begin, end).
struct ByteRun {
  std::uint64_t begin = 0, end = 0;

  bool contains(std::uint64_t byte) const { return begin <= byte && byte < end; }
  /// Returns the numbers [first, second) of the elements that begin in the range, out of `elements`
  /// consecutive elements from `first_byte` on.
  std::pair<std::uint64_t, std::uint64_t> elements_in(std::uint64_t first_byte,
                                                      std::uint64_t element_bytes,
                                                      std::uint64_t elements) const;
};
/// Returns the bytes, out of `total_bytes`, that belong to process share.rank, split at multiples
/// of `unit_bytes`.
ByteRun owned_run(std::uint64_t total_bytes, std::uint64_t unit_bytes, const WorkSplit& share);

}  // namespace unishard::converters
