#pragma once
// Describes a shard of an earlier checkpoint, so that a new shard of the same rank can point to its
// chunks instead of writing the same bytes again. Implements SPEC.md, section "Shared chunks".
#include "unishard/format/shard_reader.hpp"
#include "unishard/format/shard_writer.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace unishard {

/// One shard of a committed checkpoint, for ShardOptions::base. Immutable and thread-safe. Holds
/// the shard's tables (about 200 bytes per fragment, 40 per chunk) and no open file.
class ShardBase {
 public:
  /// Reads shard `rank` of the checkpoint in `tag_folder`.
  /// Throws: Mismatch, before any table is read, unless the checkpoint has `world_size` shards and
  /// chunks of `chunk_bytes` bytes; what ShardReader throws when the shard is damaged.
  ShardBase(Storage& storage, const Path& tag_folder, std::uint32_t rank, std::uint32_t world_size,
            std::uint64_t chunk_bytes);

  /// A file that holds chunks of the shard.
  struct Holder {
    Path path;      ///< present path
    BaseFile file;  ///< its entry in the new checkpoint
  };
  /// Returns the files that hold the shard's chunks and that a new checkpoint may keep: those with
  /// the most bytes of this shard, as long as their total size is at most twice the shard's payload
  /// (plus 16 MiB). A checkpoint therefore takes at most about three times its own size on disk.
  const std::vector<Holder>& holders() const { return holders_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }

  /// Returns the row of chunk `chunk` of data set `set`, with `file` as an index into holders()
  /// plus one; nullptr when the shard has no such chunk or its file is not among the holders.
  /// Pre: `chunk` is a chunk of `set`.
  /// Lifetime: the result is valid as long as this object.
  const ChunkRow* find(const DataSetEntry& set, std::uint64_t chunk) const;

  /// Recorded facts about one fragment.
  struct Known {
    DType dtype = DType::Float32;
    ElementRange range;
    Box box;  ///< without axes: the range
    std::uint64_t crc64 = 0;
    Stats stats;
  };
  /// Returns the facts about the fragment with the same tensor name, dtype, range and box; nullptr
  /// when there is none.
  /// Lifetime: the result is valid as long as this object.
  const Known* find(const TensorInfo& tensor, const Fragment& fragment) const;

 private:
  void choose_holders(std::uint64_t stored_bytes);

  struct DataSet {
    std::uint64_t elements = 0;
    std::vector<ChunkRow> chunks;
  };
  std::uint64_t chunk_bytes_ = 0;
  std::map<std::string, DataSet> sets_;          ///< by DataSetEntry::name()
  std::multimap<std::string, Known> fragments_;  ///< by TensorInfo::label()
  std::vector<Holder> holders_;
};

}  // namespace unishard
