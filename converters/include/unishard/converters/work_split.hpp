#pragma once
// Who of several processes does which part of a job. Pure: all of them come to the same answer.
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {

struct WorkSplit {
  std::uint32_t rank = 0, size = 1;
  std::string id = {};  ///< new_save_id() of one of them, for names; may be empty when alone
};

/// Which of the outputs of so many bytes are share.rank's: each belongs to one process, and all
/// processes have about as many bytes. A single output is process 0's.
std::vector<bool> owned(std::span<const std::uint64_t> bytes, const WorkSplit& share);

/// Bytes [begin, end) of `total_bytes` that are share.rank's, cut at multiples of `unit_bytes`.
struct ByteRun {
  std::uint64_t begin = 0, end = 0;

  bool contains(std::uint64_t byte) const { return begin <= byte && byte < end; }
  /// The elements, of `elements` that lie one after the other from `first_byte` on, that begin in
  /// the run: numbers [first, second).
  std::pair<std::uint64_t, std::uint64_t> elements_in(std::uint64_t first_byte,
                                                      std::uint64_t element_bytes,
                                                      std::uint64_t elements) const;
};
ByteRun owned_run(std::uint64_t total_bytes, std::uint64_t unit_bytes, const WorkSplit& share);

}  // namespace unishard::converters
