#include "shard/shard_payload.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/io.hpp"

#include "codec/chunk_codec.hpp"
#include "shard/chunk_cache.hpp"
#include "storage/block_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace unishard::detail {
namespace {

/// Copies the bytes of `from` from byte `inside` on, as many as fit into `out`; returns their
/// number.
std::uint64_t copy_part(std::span<const std::byte> from, std::uint64_t inside,
                        std::span<std::byte> out) {
  const std::uint64_t count = std::min<std::uint64_t>(out.size(), from.size() - inside);
  std::memcpy(out.data(), from.data() + inside, count);
  return count;
}

}  // namespace

void ShardPayload::read(std::size_t set, std::uint64_t at, std::span<std::byte> out) const {
  while (!out.empty()) {
    const std::uint64_t count = read_some(set, at, out);
    out = out.subspan(count);
    at += count;
  }
}

std::vector<ShardReader::Damage> ShardPayload::check(std::size_t set, std::uint64_t first,
                                                     std::uint64_t count,
                                                     std::span<std::byte> buffer) const {
  const std::uint64_t last = tables_.geometry(set).length(first + count - 1);
  buffer = buffer.first((count - 1) * tables_.chunk_bytes + last);
  std::vector<ShardReader::Damage> damages;
  visit_chunks(set, first, buffer, [&](std::uint64_t chunk, bool is_sound) {
    if (!is_sound) damages.push_back(damage(set, chunk));
  });
  return damages;
}

ShardReader::Damage ShardPayload::damage(std::size_t set, std::uint64_t chunk) const {
  const DataSetEntry& item = tables_.entry.data_sets[set];
  const ChunkRow& stored = tables_.chunks[set][chunk];
  ShardReader::Damage out{tables_.first_chunk(set) + chunk,
                          item.name(),
                          stored.file,
                          stored.file_offset,
                          stored.stored_bytes,
                          {}};
  const std::uint64_t begin = chunk * tables_.chunk_bytes / size_of(item.dtype);
  const ElementRange in_set{begin,
                            begin + tables_.geometry(set).length(chunk) / size_of(item.dtype)};
  for (const std::uint32_t number : tables_.rows_in_set[set]) {
    const IndexRow& row = tables_.rows[number];
    const ElementRange common =
        intersect(in_set, {row.element_offset, row.element_offset + row.elements});
    if (common.empty()) continue;
    const ElementRange own{common.begin - row.element_offset, common.end - row.element_offset};
    out.lost.push_back({row.tensor, tables_.map_of(row).bounds_of(own), own.size()});
  }
  return out;
}

void ShardPayload::raise_damaged(const ShardReader::Damage& bad) const {
  std::string lost;
  for (const ShardReader::Lost& part : bad.lost) {
    if (lost.size() > 300) {
      lost += ", ...";
      break;
    }
    lost += fmt::format("{}{} {}", lost.empty() ? "" : ", ",
                        tables_.catalog.tensors[part.tensor].label(),
                        elements_text(part.bounds, part.elements));
  }
  raise(ErrorCode::Corrupt,
        fmt::format("{}: bytes {} to {} (data set {}) do not match their checksum: damaged {}",
                    tables_.path_of(bad.file).native(), bad.file_offset,
                    bad.file_offset + bad.bytes, bad.data_set, lost.empty() ? "padding" : lost),
        "use another checkpoint, or a copy of this file");
}

/// Reads whole chunks from `chunk` on, as many as fill `out`, and calls visit(chunk, whether it
/// is sound) for each. Neighbours that lie as they are one behind the other come in one read.
template <class Visit>
void ShardPayload::visit_chunks(std::size_t set, std::uint64_t chunk, std::span<std::byte> out,
                                const Visit& visit) const {
  while (!out.empty()) {
    const std::uint64_t run = plain_run(set, chunk, out.size());
    if (run == 0) {
      const std::span<std::byte> bytes = out.first(tables_.geometry(set).length(chunk));
      visit(chunk, decode(set, chunk, bytes));
      out = out.subspan(bytes.size());
      ++chunk;
      continue;
    }
    files_.of(tables_.chunks[set][chunk])
        .read_at(tables_.chunks[set][chunk].file_offset, out.first(run));
    for (std::span<std::byte> rest = out.first(run); !rest.empty(); ++chunk) {
      const std::span<std::byte> bytes = rest.first(tables_.geometry(set).length(chunk));
      visit(chunk, crc64(bytes) == tables_.chunks[set][chunk].crc64);
      rest = rest.subspan(bytes.size());
    }
    out = out.subspan(run);
  }
}

/// How many of `bytes` bytes from `chunk` on lie in one piece and as they are; whole chunks.
std::uint64_t ShardPayload::plain_run(std::size_t set, std::uint64_t chunk,
                                      std::uint64_t bytes) const {
  const bool compressed = tables_.entry.data_sets[set].compressed;
  const ChunkRow& first = tables_.chunks[set][chunk];
  std::uint64_t run = 0;
  for (; run < bytes; ++chunk) {
    const ChunkRow& row = tables_.chunks[set][chunk];
    const bool is_plain = (!compressed || row.filter_mask == kNoFilter) &&
                          row.stored_bytes == tables_.geometry(set).length(chunk);
    if (!is_plain || row.file != first.file || row.file_offset != first.file_offset + run) break;
    run += row.stored_bytes;
  }
  return run;
}

void ShardPayload::read_chunks(std::size_t set, std::uint64_t first,
                               std::span<std::byte> out) const {
  visit_chunks(set, first, out, [&](std::uint64_t chunk, bool is_sound) {
    if (!is_sound) raise_damaged(damage(set, chunk));
  });
}

// One chunk that is compressed, or as it is with what lies beyond the data set's end. False when
// the bytes do not match their checksum or are no such chunk.
bool ShardPayload::decode(std::size_t set, std::uint64_t chunk, std::span<std::byte> out) const {
  const ChunkRow& row = tables_.chunks[set][chunk];
  const BorrowedCodec codec;
  const std::span<std::byte> stored = codec->stored(row.stored_bytes);
  files_.of(row).read_at(row.file_offset, stored);
  if (crc64(stored) != row.crc64) return false;
  if (row.filter_mask == kBothFilters) {
    return codec->decode(stored, tables_.geometry(set).encoded_length(),
                         size_of(tables_.entry.data_sets[set].dtype), out);
  }
  std::ranges::copy(stored.first(out.size()), out.begin());
  return true;
}

/// Reads bytes from byte `at` of a data set on into `out`, some or all, and returns how many.
std::uint64_t ShardPayload::read_some(std::size_t set, std::uint64_t at,
                                      std::span<std::byte> out) const {
  const std::uint64_t chunk = at / tables_.chunk_bytes, inside = at % tables_.chunk_bytes;
  if (const std::uint64_t whole = inside == 0 ? whole_chunks(set, chunk, out.size()) : 0) {
    read_chunks(set, chunk, out.first(whole));
    return whole;
  }
  const std::uint64_t number = tables_.first_chunk(set) + chunk;
  if (const auto held = cache_->find(this, number)) return copy_part(*held, inside, out);
  if (has_windows(set)) return read_window(set, chunk, inside, out);
  const auto bytes = cache_->memory(tables_.geometry(set).length(chunk));
  read_chunks(set, chunk, *bytes);
  cache_->keep(this, number, bytes);
  return copy_part(*bytes, inside, out);
}

/// Returns how many of the `bytes` bytes from `chunk` on are whole chunks that are read directly
/// into place. If a part of a chunk follows, the last whole chunks are left to be read together
/// with it.
std::uint64_t ShardPayload::whole_chunks(std::size_t set, std::uint64_t chunk,
                                         std::uint64_t bytes) const {
  if (chunk * tables_.chunk_bytes + bytes == tables_.entry.data_sets[set].padded_bytes())
    return bytes;
  const std::uint64_t whole = bytes / tables_.chunk_bytes * tables_.chunk_bytes;
  if (whole == bytes || !has_windows(set)) return whole;
  return bytes / kBlockBytes * kBlockBytes / tables_.chunk_bytes * tables_.chunk_bytes;
}

/// Reading compressed chunks takes blocks, of which a thread must have one at most.
bool ShardPayload::has_windows(std::size_t set) const {
  return !tables_.entry.data_sets[set].compressed && tables_.chunk_bytes <= kBlockBytes;
}

/// Does the same as read_some() through a block of memory: a chunk that is needed in part is read
/// in one request with its neighbours. The cache keeps it, because the rest of it will be needed
/// soon.
std::uint64_t ShardPayload::read_window(std::size_t set, std::uint64_t first, std::uint64_t inside,
                                        std::span<std::byte> out) const {
  const BlockPool::Block block = block_pool().take(io_options().read_buffer_bytes);
  std::uint64_t bytes = 0, end = first;
  while (bytes < inside + out.size() && bytes + tables_.geometry(set).length(end) <= kBlockBytes)
    bytes += tables_.geometry(set).length(end++);
  const std::span<std::byte> window = block.bytes().first(bytes);
  read_chunks(set, first, window);
  const std::uint64_t count = copy_part(window, inside, out);
  if (inside != 0) keep(set, first, window.first(tables_.geometry(set).length(first)));
  if (inside + count < bytes && (inside == 0 || end - first > 1))
    keep(set, end - 1, window.last(tables_.geometry(set).length(end - 1)));
  return count;
}

void ShardPayload::keep(std::size_t set, std::uint64_t chunk,
                        std::span<const std::byte> bytes) const {
  const auto memory = cache_->memory(bytes.size());
  std::ranges::copy(bytes, memory->begin());
  cache_->keep(this, tables_.first_chunk(set) + chunk, memory);
}

}  // namespace unishard::detail
