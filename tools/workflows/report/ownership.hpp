#pragma once
// The bytes that each rank holds of each unit, in as few rows and columns as can be read.
// Thread safety: pure functions.
#include "workflows/inspect.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::tools {

struct Ownership {
  /// One rank ("3") or consecutive ranks ("32-63").
  std::vector<std::string> ranks;
  /// One unit of the trainer, one layer, or consecutive ones ("h.0 to h.3").
  std::vector<std::string> units;
  std::vector<std::vector<std::uint64_t>> bytes;  ///< by unit, then by column of `ranks`
  std::vector<std::uint64_t> rank_bytes;          ///< by single rank

  bool empty() const { return units.empty(); }
};

inline constexpr std::size_t kOwnershipColumns = 16, kOwnershipRows = 64;

/// Returns an empty result when `description` does not say which rank holds what.
Ownership ownership(const Description& description);

}  // namespace unishard::tools
