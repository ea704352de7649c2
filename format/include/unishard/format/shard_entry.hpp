#pragma once
// What the manifest and the tables of a shard say of its payload. Values and pure functions; safe
// to use from any thread. SPEC.md, sections "Manifest" and "Shard file", has the layouts.
#include "unishard/format/catalog.hpp"
#include "unishard/format/compression.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/limits.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unishard {

/// Chunks are the units of checksums: whoever needs a part of one reads and checks all of it. Of
/// two sizes this version writes the small one where the tables stay small with it.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kSmallChunkBytes = std::uint64_t{256} << 10;

/// Returns the chunk size for a checkpoint that holds `catalog`: kSmallChunkBytes for up to 64 GiB
/// of payload, where the tables that every reader opens stay below 8 MiB, and kChunkBytes for more.
/// What may be compressed has large chunks: zstd codes blocks of 128 KiB, and each should lie in
/// one byte plane.
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

}  // namespace unishard
