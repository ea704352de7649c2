#pragma once
// What an earlier checkpoint holds already: a new shard of the same rank points to its chunks
// instead of writing the same bytes again. Implements SPEC.md section "Shared chunks".
#include "unishard/format/shard_reader.hpp"
#include "unishard/format/shard_writer.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace unishard {

/// One shard of a committed checkpoint, to be given to a ShardWriter. Holds its tables (some 200
/// bytes a fragment, 40 a chunk) and no open file. Immutable: thread-safe.
class ShardBase {
 public:
  /// Shard `rank` of the checkpoint in `tag_folder`, which must have `world_size` shards in chunks
  /// of `chunk_bytes`, as the new checkpoint will: throws Mismatch where it has not, before any
  /// table is read, and what ShardReader throws where the shard is damaged.
  ShardBase(Storage& storage, const Path& tag_folder, std::uint32_t rank, std::uint32_t world_size,
            std::uint64_t chunk_bytes);

  struct Holder {
    Path path;      ///< where it is now
    BaseFile file;  ///< as the new checkpoint will name it
  };
  /// The files in which the shard's chunks lie and which are worth keeping: those with the most
  /// bytes of this shard, as long as together they are not larger than twice what the shard holds.
  /// So a checkpoint never keeps more than three times its own size on the disk.
  const std::vector<Holder>& holders() const { return holders_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }

  /// Where chunk `chunk` of data set `set` lies; `file` is an index into holders() plus one.
  /// nullptr where the shard has no such chunk, or in a file that is not worth keeping.
  const ChunkRow* find(const DataSetEntry& set, std::uint64_t chunk) const;

  struct Known {
    DType dtype = DType::Float32;
    ElementRange range;
    std::uint64_t crc64 = 0;
    Stats stats;
  };
  /// What the shard says of the same elements of the tensor of the same name and type; nullptr
  /// where it has no such fragment.
  const Known* find(const TensorInfo& tensor, ElementRange range) const;

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
