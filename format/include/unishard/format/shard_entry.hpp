#pragma once
// Describes one shard as the manifest and the shard's own tables record it. SPEC.md, sections
// "Manifest" and "Shard file", defines the layouts.
// Thread safety: values and pure functions.
#include "unishard/format/catalog.hpp"
#include "unishard/format/compression.hpp"
#include "unishard/format/coverage.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/limits.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard {

/// The two chunk sizes that this version writes, in bytes. A reader of any part of a chunk reads
/// and checks the whole chunk.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kSmallChunkBytes = std::uint64_t{256} << 10;

/// Returns the chunk size for a save of `catalog`: kSmallChunkBytes for up to 64 GiB of
/// uncompressed payload, for which the tables that every reader opens stay below 8 MiB, else
/// kChunkBytes. Payload that may be compressed has large chunks because zstd codes blocks of 128
/// KiB, each of which should lie in one byte plane.
std::uint64_t chunk_bytes_for(const Catalog& catalog, const Compression& compression);

/// Location of one data set, which holds all fragments of one state and dtype back to back.
struct DataSetEntry {
  std::string state;
  DType dtype = DType::Float32;
  std::uint64_t offset = 0;  ///< absolute file offset, a multiple of kPayloadAlign; 0 if compressed
  /// Elements of the fragments; the data set is padded with zeros to kPayloadAlign bytes.
  std::uint64_t elements = 0;
  std::uint64_t chunks_offset = 0;  ///< file offset of its chunk table
  bool compressed = false;  ///< stored in chunks, each where its row of the chunk table says
  bool shared = false;      ///< compressed, and chunks may lie in ShardEntry::bases

  /// Returns the name below /data and /chunks, for example "fp32.float32".
  std::string name() const;
  std::uint64_t padded_bytes() const;  ///< uncompressed bytes, including padding
  bool operator==(const DataSetEntry&) const = default;
};

/// A base: a file of an earlier save that holds chunks of this shard. The checkpoint's folder has a
/// hard link to it, so it lives as long as this checkpoint.
struct BaseFile {
  std::string file;         ///< name inside the checkpoint's folder
  std::string save_id;      ///< id of the save that wrote it
  std::uint64_t bytes = 0;  ///< size of the file
  std::string group;        ///< HDF5 group of its own chunks: "data" or "fresh"

  bool operator==(const BaseFile&) const = default;
};

/// Describes a shard in the manifest: enough to read it and to prove that it is the right file.
struct ShardEntry {
  std::string file;  ///< name inside the checkpoint's folder
  std::uint32_t rank = 0;
  std::uint64_t bytes = 0;           ///< size of the file
  std::uint64_t metadata_crc64 = 0;  ///< CRC-64 of all bytes outside the payload, in file order
  std::uint64_t index_offset = 0;
  std::uint64_t index_rows = 0;
  std::uint64_t names_offset = 0;
  std::uint64_t names_bytes = 0;
  std::vector<DataSetEntry> data_sets;
  std::vector<BaseFile> bases = {};  ///< empty unless a data set is shared
  std::uint64_t boxes_offset = 0;
  std::uint64_t boxes_bytes = 0;  ///< 0 when no fragment is a box

  bool operator==(const ShardEntry&) const = default;
};

Json to_json(const ShardEntry& entry);
/// Reads what to_json() returns. `where` begins every message.
/// Throws: Corrupt, naming the field.
ShardEntry shard_entry_from_json(const Json& json, std::string_view where);

/// The size of a row of /index as it is stored; see SPEC.md.
inline constexpr std::size_t kIndexRowBytes = 96;

/// A row of /index: one fragment.
struct IndexRow {
  std::uint32_t tensor = 0;
  std::uint32_t data_set = 0;        ///< index into ShardEntry::data_sets, or kDerivedDataSet
  ElementRange range;                ///< elements of the tensor; of a box, their bounds
  std::uint64_t element_offset = 0;  ///< offset of the fragment's first element in the data set
  std::uint64_t crc64 = 0;
  std::uint64_t name_offset = 0;  ///< offset of "fqn\0state" in /names
  std::uint32_t name_bytes = 0;
  std::uint32_t box = 0;  ///< 0: a range; else 1 + the number of the box's first word in /boxes
  Stats stats;
  std::uint64_t elements = 0;  ///< elements of the fragment; not stored
};
inline constexpr std::uint32_t kDerivedDataSet = 0xffffffffu;

/// A fragment of one tensor, as a shard's tables describe it.
struct FragmentRow {
  const IndexRow* row = nullptr;
  BoxView box = {};                ///< empty: a range
  std::uint64_t contribution = 0;  ///< of a box, to the digest of its tensor

  HeldPart held() const { return {row->range, box}; }
};

/// What all fragments of one tensor hold together, whichever shards they are in.
struct RowTotal {
  std::uint64_t crc64 = 0;
  Stats stats;
};
/// Returns the digest and the statistics of `tensor`.
/// Pre: the rows hold each element exactly once, and are sorted by the beginnings of their ranges.
RowTotal total_of(const TensorInfo& tensor, std::span<const FragmentRow> rows);

/// A row of a chunk table: location and checksum of one chunk's stored bytes.
struct ChunkRow {
  std::uint64_t file_offset = 0;
  std::uint32_t stored_bytes = 0;
  std::uint32_t filter_mask = 0;  ///< HDF5's filter mask; see SPEC.md, "Compressed data sets"
  std::uint64_t crc64 = 0;        ///< CRC-64 of the stored bytes
  std::uint32_t file = 0;         ///< 0: the shard itself; else ShardEntry::bases[file - 1]
};

/// Returns, for example, "shard-00003-of-00008.h5".
std::string shard_file_name(std::uint32_t rank, std::uint32_t world_size);

}  // namespace unishard
