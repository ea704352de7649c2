#pragma once
// Writes one rank's file. HDF5 creates the container and decides where bytes go: for all data sets
// in advance, or chunk by chunk when chunks are compressed or shared with earlier saves. Payload
// and tables are then written to their offsets by positioned writes. Implements SPEC.md, sections
// "Shard file" and "Checksums".
#include "unishard/format/partition.hpp"
#include "unishard/format/shard_entry.hpp"
#include "unishard/format/storage.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unishard {

class ShardBase;

/// How a shard stores its payload. `chunk_bytes` must be the same for all shards of a checkpoint
/// (CommitOptions::chunk_bytes).
struct ShardOptions {
  std::uint64_t chunk_bytes = kChunkBytes;
  Compression compression = {};
  /// Earlier shard to share chunks with, of the same `chunk_bytes`; may be null.
  std::shared_ptr<const ShardBase> base = nullptr;
};

/// Writes one shard. Each element of each fragment must be written once, in any order and from any
/// number of threads. Digests and statistics are computed as the bytes pass. The bytes of a derived
/// fragment are digested but not stored. Without finish(), the destructor removes the file.
class ShardWriter {
 public:
  /// Creates `path`. `fragments` come from plan_shard(), or are sorted by tensor and the beginnings
  /// of their ranges; a box that is a range is stored as one. `save_id` has 32 hexadecimal digits.
  /// With a base, chunks that the base holds as well are not written: the shard points to them, and
  /// hard links to their files are made in the folder of `path`. Lifetime: `storage` and `catalog`
  /// must outlive this object. Throws: InvalidArgument when a fragment is not within its tensor or
  /// the base has other chunks; AlreadyExists, NoSpace or Io from the file system. Memory: with
  /// compression or a base, one chunk for each chunk that is begun and not complete (few when
  /// ranges are written roughly in order), and about three for each thread that encodes;
  /// IoOptions::write_buffer_bytes limits those threads.
  ShardWriter(Storage& storage, Path path, std::string save_id, const Catalog& catalog,
              std::uint32_t rank, std::vector<Fragment> fragments, ShardOptions options = {});
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  const std::vector<Fragment>& fragments() const;
  /// Writes elements `range` of fragments()[fragment]. `range` counts elements of the tensor where
  /// the fragment was given as a range, and its own elements, from 0 on, where it was given as a
  /// box. Thread-safe. Throws: InvalidArgument when `range` is not a part of the fragment or
  /// `bytes` has another size.
  void write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes);
  /// Checks that every element was written once, writes the tables, syncs and closes the file.
  /// Returns the entry for the manifest.
  /// Throws: InvalidArgument, naming the tensor and the elements that were not written or were
  /// written twice.
  ShardEntry finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace unishard
