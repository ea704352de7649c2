#pragma once
// The division of one data set into chunks. See SPEC.md, "Shard file".
#include "unishard/format/shard_entry.hpp"

#include <algorithm>
#include <cstdint>

namespace unishard::detail {

/// Offsets and lengths are bytes of the padded data set, decoded.
/// Pre: chunk_bytes is not 0, and chunk numbers are below count().
/// Thread safety: an immutable value.
class ChunkGeometry {
 public:
  ChunkGeometry(const DataSetEntry& set, std::uint64_t chunk_bytes)
      : set_bytes_(set.padded_bytes()), chunk_bytes_(chunk_bytes) {}

  std::uint64_t count() const {
    return set_bytes_ / chunk_bytes_ + (set_bytes_ % chunk_bytes_ != 0);
  }
  std::uint64_t begin(std::uint64_t chunk) const { return chunk * chunk_bytes_; }
  std::uint64_t length(std::uint64_t chunk) const {
    return std::min(chunk_bytes_, set_bytes_ - begin(chunk));
  }
  /// Returns the number of the chunk that contains byte `offset`.
  std::uint64_t at(std::uint64_t offset) const { return offset / chunk_bytes_; }
  /// Returns the decoded bytes of every chunk of a compressed data set; the last one is filled with
  /// zeros. A data set smaller than one chunk has one chunk of its own size.
  std::uint64_t encoded_length() const { return std::min(chunk_bytes_, set_bytes_); }

 private:
  std::uint64_t set_bytes_;
  std::uint64_t chunk_bytes_;
};

}  // namespace unishard::detail
