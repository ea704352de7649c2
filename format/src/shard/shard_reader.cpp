#include "unishard/format/shard_reader.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/memory.hpp"
#include "unishard/format/node_names.hpp"
#include "unishard/format/version.hpp"

#include "shard/chunk_cache.hpp"
#include "shard/shard_payload.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard {
namespace {

using detail::ShardTables;

std::unique_ptr<File> open_file(Storage& storage, const ShardTables& tables) {
  const ShardEntry& entry = tables.entry;
  if (storage.kind(tables.path) == EntryKind::Missing) {
    const std::vector<std::string> nodes = nodes_of(tables.catalog);
    tables.corrupt(fmt::format("the shard of rank {} is missing", entry.rank),
                   entry.rank < nodes.size()
                       ? fmt::format("node {} saved it to its own disk: `unishard gather "
                                     "NODE_DIR... OUT` makes one checkpoint of all nodes' folders",
                                     nodes[entry.rank])
                       : "restore the file from a copy, or use another checkpoint");
  }
  auto file = storage.open(tables.path);
  MemoryBudget(tables.path.native()).charge(detail::table_memory(entry, tables.chunk_bytes));
  if (const std::uint64_t size = file->size(); size != entry.bytes) {
    tables.corrupt(fmt::format("{}: the file has {} bytes, the manifest says {}",
                               size < entry.bytes ? "truncated" : "too long", size, entry.bytes),
                   "the copy may be incomplete: copy the file again, or use another checkpoint");
  }
  return file;
}

detail::UserBlock user_block(const File& shard) {
  std::vector<std::byte> block(detail::kUserBlockBytes);
  shard.read_at(0, block);
  return detail::decode_user_block(block, shard.path());
}

void check_user_block(const File& file, const ShardTables& tables, std::string_view save_id) {
  const ShardEntry& entry = tables.entry;
  if (entry.bytes < detail::kUserBlockBytes)
    tables.corrupt(fmt::format("{} bytes are too few for a shard", entry.bytes));
  const detail::UserBlock header = user_block(file);
  if (header.save_id != save_id) {
    tables.corrupt(
        fmt::format("this shard belongs to another save ({}) than the manifest ({})",
                    quote(header.save_id), save_id),
        "files of two checkpoints were mixed: copy the whole folder of one of them again");
  }
  if (header.rank != entry.rank) {
    tables.corrupt(fmt::format("this is the shard of rank {}, the manifest expects rank {}",
                               header.rank, entry.rank),
                   "files were renamed or swapped");
  }
  if (((header.required_features & kBoxesFeatureBit) != 0) != (entry.boxes_bytes != 0))
    tables.corrupt("the header and the manifest disagree on whether the shard has boxes");
}

/// Checks that each base is the file that the manifest names; the chunk tables cover its bytes.
std::vector<std::unique_ptr<File>> open_bases(Storage& storage, const ShardTables& tables) {
  const char* const kHint =
      "copy the whole folder of the checkpoint again, or use another checkpoint";
  std::vector<std::unique_ptr<File>> bases;
  for (const BaseFile& base : tables.entry.bases) {
    const Path path = tables.path_of(static_cast<std::uint32_t>(bases.size() + 1));
    if (storage.kind(path) == EntryKind::Missing) {
      tables.corrupt(fmt::format("a part of its payload is in {}, which is missing", path.native()),
                     kHint);
    }
    bases.push_back(storage.open(path));
    if (bases.back()->size() != base.bytes || base.bytes < detail::kUserBlockBytes ||
        user_block(*bases.back()).save_id != base.save_id) {
      tables.corrupt(fmt::format("{} is not the file of save {} with {} bytes that the manifest "
                                 "names",
                                 path.native(), base.save_id, base.bytes),
                     kHint);
    }
  }
  return bases;
}

}  // namespace

std::shared_ptr<ChunkCache> make_chunk_cache(std::uint64_t capacity_bytes) {
  return std::make_shared<ChunkCache>(capacity_bytes);
}

struct ShardReader::Impl {
  const ShardTables tables;
  const detail::ShardPayload payload;  // refers to the tables

  Impl(ShardTables read, detail::ShardFiles files, std::shared_ptr<ChunkCache> cache)
      : tables(std::move(read)), payload(tables, std::move(files), std::move(cache)) {}
};

ShardReader::ShardReader(Storage& storage, Path path, ShardEntry entry, std::string_view save_id,
                         const Catalog& catalog, std::uint64_t chunk_bytes,
                         std::shared_ptr<ChunkCache> cache) {
  ShardTables tables{std::move(path), std::move(entry), catalog, chunk_bytes};
  detail::ShardFiles files{open_file(storage, tables)};
  check_user_block(*files.own, tables, save_id);
  files.bases = open_bases(storage, tables);
  detail::read_tables(*files.own, tables);
  impl_ = std::make_unique<Impl>(std::move(tables), std::move(files),
                                 cache ? std::move(cache) : make_chunk_cache());
}

ShardReader::~ShardReader() = default;

const ShardEntry& ShardReader::entry() const { return impl_->tables.entry; }
const std::vector<IndexRow>& ShardReader::rows() const { return impl_->tables.rows; }
const Path& ShardReader::path() const { return impl_->tables.path; }
std::uint64_t ShardReader::chunk_bytes() const { return impl_->tables.chunk_bytes; }
Path ShardReader::path_of(std::uint32_t file) const { return impl_->tables.path_of(file); }
const std::vector<ChunkRow>& ShardReader::chunks(std::size_t data_set) const {
  return impl_->tables.chunks.at(data_set);
}

FragmentRow ShardReader::fragment(std::size_t row) const {
  return impl_->tables.fragment(impl_->tables.rows.at(row));
}

ElementMap ShardReader::map_of(std::size_t row) const {
  return impl_->tables.map_of(impl_->tables.rows.at(row));
}

void ShardReader::read(std::size_t row_number, ElementRange own, std::span<std::byte> out) const {
  const ShardTables& tables = impl_->tables;
  const IndexRow& row = tables.rows.at(row_number);
  if (row.data_set == kDerivedDataSet || own.begin > own.end || own.end > row.elements) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("elements {} to {} are not in row {} of {}", own.begin, own.end, row_number,
                      tables.path.native()));
  }
  const std::uint64_t item_bytes = size_of(tables.entry.data_sets[row.data_set].dtype);
  if (out.size() != own.size() * item_bytes)
    raise(ErrorCode::InvalidArgument, "the buffer does not have the range's size");
  impl_->payload.read(row.data_set, (row.element_offset + own.begin) * item_bytes, out);
}

std::uint64_t ShardReader::chunk_start(std::size_t row_number, std::uint64_t own) const {
  const IndexRow& row = impl_->tables.rows.at(row_number);
  if (row.data_set == kDerivedDataSet || own > row.elements) return own;
  const std::uint64_t width = size_of(impl_->tables.entry.data_sets[row.data_set].dtype);
  const std::uint64_t per_chunk = impl_->tables.chunk_bytes / width;
  return own - std::min(own, (row.element_offset + own) % per_chunk);
}

std::uint64_t ShardReader::stored_payload_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& set : impl_->tables.chunks)
    for (const ChunkRow& row : set) bytes += row.stored_bytes;
  return bytes;
}

std::uint64_t ShardReader::shared_payload_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& set : impl_->tables.chunks)
    for (const ChunkRow& row : set) bytes += row.file != 0 ? row.stored_bytes : 0;
  return bytes;
}

std::uint64_t ShardReader::chunk_count() const {
  std::uint64_t count = 0;
  for (const auto& set : impl_->tables.chunks) count += set.size();
  return count;
}

std::vector<ShardReader::Damage> ShardReader::check_chunks(std::uint64_t first, std::uint64_t count,
                                                           std::span<std::byte> buffer) const {
  const ShardTables& tables = impl_->tables;
  std::size_t set = 0;
  for (; set < tables.chunks.size() && first >= tables.chunks[set].size(); ++set)
    first -= tables.chunks[set].size();
  if (set == tables.chunks.size() || count == 0 || count > tables.chunks[set].size() - first) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} chunks from chunk {} on are not in one data set of {}", count, first,
                      tables.path.native()));
  }
  return impl_->payload.check(set, first, count, buffer);
}

}  // namespace unishard
