#pragma once
// Which tensors of two checkpoints are equal, by their digests.
#include "unishard/converters/source.hpp"

#include "workflows/diff.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

/// Unknown: a digest is missing. NotCompared: the other checkpoint's format does not hold the
/// state.
enum class Sameness : std::uint8_t { Equal, Different, Unknown, OnlyInFirst, NotCompared };

struct DigestComparison {
  std::vector<Sameness> tensors;         ///< of the first checkpoint's catalog
  std::vector<std::string> only_second;  ///< labels
  /// Counts of `tensors`.
  std::uint64_t equal = 0, different = 0, unknown = 0, only_first = 0;
  /// Pairing::notes and differences of what is no tensor.
  std::vector<std::string> information;
  /// What diff() found, where it was asked to read.
  std::optional<DiffReport> read;
};

/// Compares shapes, dtypes and digests. With `deep`, calls diff(), which reads the tensors whose
/// digests differ or are not stored; its result decides then.
/// Throws: what diff() throws.
DigestComparison compare_digests(const converters::Source& a, const converters::Source& b,
                                 bool deep, const TransferOptions& transfer);

}  // namespace unishard::tools
