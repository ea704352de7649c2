#pragma once
// Writes one rank's file. HDF5 creates the container and decides where bytes belong: all data sets
// in advance, or chunk by chunk when they are compressed or shared with earlier saves. Payload and
// tables then go to their offsets by positioned writes. Implements SPEC.md, sections "Shard file"
// and "Checksums".
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

/// How a shard's payload lies in its file. `chunk_bytes` is one for all shards of a checkpoint and
/// in its manifest (CommitOptions).
struct ShardOptions {
  std::uint64_t chunk_bytes = kChunkBytes;
  Compression compression = {};
  std::shared_ptr<const ShardBase> base = nullptr;  ///< to share with; its chunks are as large
};

/// Writes one shard. Every fragment must be given completely, each element once, in any order and
/// from any number of threads; a run is digested and measured as it passes, so each byte is touched
/// once. Bytes of a derived fragment are digested and not stored. The destructor abandons: without
/// finish() the file is removed.
class ShardWriter {
 public:
  /// `fragments` as plan_shard() returns them. `save_id` has 32 hexadecimal digits. Creates `path`.
  /// Compressing takes the memory of the chunks that are begun and not complete, few when runs
  /// come about in order, and three for each thread that encodes at the same time: as many as
  /// IoOptions::write_buffer_bytes allow. With a base, chunks that it holds as well are not
  /// written: the shard points to them, and their files get names beside `path`.
  ShardWriter(Storage& storage, Path path, std::string save_id, const Catalog& catalog,
              std::uint32_t rank, std::vector<Fragment> fragments, ShardOptions options = {});
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  const std::vector<Fragment>& fragments() const;
  /// Elements `range` of fragments()[fragment].tensor (a part of that fragment). Thread-safe.
  void write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes);
  /// Checks that every element was given, writes the tables, syncs and closes. Throws
  /// InvalidArgument naming the tensor and the range that is missing or given twice.
  ShardEntry finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace unishard
