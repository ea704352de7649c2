#pragma once
// One rank's file. Names and tables are HDF5's, the payload is ours: HDF5 creates the container and
// says where bytes belong (all data sets in advance, or chunk by chunk when they are compressed or
// shared with earlier saves), then payload and tables go to their offsets by positioned writes; a
// reader that trusts the manifest needs no HDF5 at all. Implements SPEC.md sections "Shard file"
// and "Checksums".
#include "unishard/format/catalog.hpp"
#include "unishard/format/compression.hpp"
#include "unishard/format/partition.hpp"
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard {

/// Chunks are the units of checksums: whoever needs a part of one reads and checks all of it. Of
/// two sizes this version writes the small one where the tables stay small with it.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kSmallChunkBytes = std::uint64_t{256} << 10;
inline constexpr std::uint64_t kPayloadAlign = 4096;  ///< of offset and length of a data set

/// Of a checkpoint that holds `catalog`. Small ones for up to 64 GiB: every reader opens the tables
/// of all shards, then 8 MiB at most. Large ones for more, and for what may be compressed, since
/// zstd codes blocks of 128 KiB and each should lie in one byte plane.
std::uint64_t chunk_bytes_for(const Catalog& catalog, const Compression& compression);

/// Where one data set (all fragments of one state and dtype, back to back) lies in the file.
struct DataSetEntry {
  std::string state;
  DType dtype = DType::Float32;
  std::uint64_t offset = 0;  ///< absolute file offset, multiple of kPayloadAlign; 0 if compressed
  std::uint64_t elements =
      0;  ///< of the fragments; the data set is zero-padded to kPayloadAlign bytes
  std::uint64_t chunks_offset = 0;  ///< file offset of its chunk table
  bool compressed = false;          ///< then in chunks, each where its row of the chunk table says
  bool shared = false;              ///< compressed, and chunks may lie in ShardEntry::bases

  /// "fp32.float32": its name below /data and /chunks.
  std::string name() const;
  std::uint64_t padded_bytes() const;  ///< padding included; fewer are stored if compressed
  /// Of every chunk of a compressed data set, when decoded: a data set of less than one chunk has
  /// one as large as itself.
  std::uint64_t encoded_chunk_bytes(std::uint64_t chunk_bytes) const;
  bool operator==(const DataSetEntry&) const = default;
};

/// A file of an earlier save in which chunks of a shard lie: a name (a hard link) of its own in the
/// checkpoint's folder, so that it lives as long as this checkpoint does.
struct BaseFile {
  std::string file;         ///< name inside the checkpoint's folder
  std::string save_id;      ///< of the save that wrote it
  std::uint64_t bytes = 0;  ///< size of the file
  std::string group;        ///< HDF5 group below which its own chunks are: "data" or "fresh"

  bool operator==(const BaseFile&) const = default;
};

/// What the manifest says of a shard: enough to read it and to prove that it is the right file.
struct ShardEntry {
  std::string file;  ///< name inside the checkpoint's folder
  std::uint32_t rank = 0;
  std::uint64_t bytes = 0;           ///< size of the file
  std::uint64_t metadata_crc64 = 0;  ///< of all bytes outside the payload data sets, in file order
  std::uint64_t index_offset = 0;
  std::uint64_t index_rows = 0;
  std::uint64_t names_offset = 0;
  std::uint64_t names_bytes = 0;
  std::vector<DataSetEntry> data_sets;
  std::vector<BaseFile> bases = {};  ///< none unless a data set is shared

  bool operator==(const ShardEntry&) const = default;
};

Json to_json(const ShardEntry& entry);
/// Throws Corrupt naming `where` and the field.
ShardEntry shard_entry_from_json(const Json& json, std::string_view where);

/// Row of /index: one fragment. Encoded in 96 bytes, see SPEC.md.
struct IndexRow {
  std::uint32_t tensor = 0;
  std::uint32_t data_set = 0;        ///< index into ShardEntry::data_sets, or kDerivedDataSet
  ElementRange range;                ///< of the tensor
  std::uint64_t element_offset = 0;  ///< of the fragment's first element in the data set
  std::uint64_t crc64 = 0;
  std::uint64_t name_offset = 0;  ///< of "fqn\0state" in /names
  std::uint32_t name_bytes = 0;
  Stats stats;
};
inline constexpr std::uint32_t kDerivedDataSet = 0xffffffffu;

/// Row of a chunk table: where a chunk lies and what its stored bytes are.
struct ChunkRow {
  std::uint64_t file_offset = 0;
  std::uint32_t stored_bytes = 0;
  std::uint32_t filter_mask = 0;  ///< as HDF5's; see SPEC.md, "Compressed data sets"
  std::uint64_t crc64 = 0;        ///< of the stored bytes
  std::uint32_t file = 0;         ///< 0: the shard itself; else ShardEntry::bases[file - 1]
};

/// "shard-00003-of-00008.h5"
std::string shard_file_name(std::uint32_t rank, std::uint32_t world_size);

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

/// Chunks that were read and checked lately, shared by the shards of one checkpoint so that reading
/// many small tensors does not read their chunk again and again. Holds at most `capacity_bytes`.
/// Thread-safe.
class ChunkCache;
std::shared_ptr<ChunkCache> make_chunk_cache(std::uint64_t capacity_bytes = std::uint64_t{8} << 20);

/// Reads one shard. Everything the tables say is checked in the constructor; every payload byte is
/// checked against its chunk's checksum before it is handed out. Thread-safe.
class ShardReader {
 public:
  /// Throws Corrupt when the file is not the one that `entry` describes (size, save id, rank,
  /// checksum of the tables) or when a row points outside of it; the message says which and names
  /// the likely cause.
  ShardReader(Storage& storage, Path path, ShardEntry entry, std::string_view save_id,
              const Catalog& catalog, std::uint64_t chunk_bytes,
              std::shared_ptr<ChunkCache> cache = nullptr);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  const ShardEntry& entry() const;
  const std::vector<IndexRow>& rows() const;
  const Path& path() const;
  /// Of a file in which chunks lie, as ChunkRow::file counts them.
  Path path_of(std::uint32_t file) const;
  const std::vector<ChunkRow>& chunks(std::size_t data_set) const;
  /// Elements `range` (a part of rows()[row].range) into `out`. Not for derived rows. Throws
  /// Corrupt naming the file, the tensor, the damaged element range and the byte range of the
  /// chunk.
  void read(std::size_t row, ElementRange range, std::span<std::byte> out) const;
  /// The first element of the row that lies in the chunk of `element`, which is one of the row's.
  std::uint64_t chunk_start(std::size_t row, std::uint64_t element) const;

  /// A chunk whose bytes do not match its checksum, or cannot be decoded.
  struct Damage {
    std::uint64_t chunk = 0;  ///< its number, as check_chunks() counts
    std::string data_set;
    std::uint32_t file = 0;  ///< as ChunkRow::file
    std::uint64_t file_offset = 0, bytes = 0;
    std::vector<Fragment> lost;  ///< what of which tensors lies in it
  };
  std::uint64_t chunk_count() const;
  /// Reads `count` chunks of one data set from chunk `first` on (numbered over all data sets in
  /// their order) into `buffer`, decoded and padding included, and returns those that are damaged.
  std::vector<Damage> check_chunks(std::uint64_t first, std::uint64_t count,
                                   std::span<std::byte> buffer) const;
  std::uint64_t chunk_bytes() const;  ///< size that `buffer` must have for each chunk
  /// Payload as it lies in the file and its bases, padding included; and what of it is in a base.
  std::uint64_t stored_payload_bytes() const;
  std::uint64_t shared_payload_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace unishard
