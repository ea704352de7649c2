#include "shard/chunked_payload.hpp"

#include "unishard/format/crc64.hpp"

#include "shard/chunk_geometry.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace unishard::detail {
namespace {

/// Returns true when the base stores just these bytes, uncompressed. A contiguous data set of the
/// base may store fewer bytes of its last chunk; what follows them is zero padding here.
bool is_plain(const ChunkRow& row, std::span<const std::byte> bytes, std::uint64_t crc) {
  if (row.filter_mask != kNoFilter || row.stored_bytes > bytes.size()) return false;
  if (row.stored_bytes < bytes.size()) crc = crc64(bytes.first(row.stored_bytes));
  return crc == row.crc64;
}

/// Returns true when both chunks store the same bytes.
bool is_same(const ChunkRow& a, const ChunkRow& b) {
  return a.filter_mask == b.filter_mask && a.stored_bytes == b.stored_bytes && a.crc64 == b.crc64;
}

}  // namespace

ChunkedPayload::ChunkedPayload(File& file, Container& container, std::span<const DataSetEntry> sets,
                               std::uint64_t chunk_bytes, Compression how, const BaseLinks* base)
    : file_(file),
      container_(container),
      sets_(sets),
      chunk_bytes_(chunk_bytes),
      how_(how),
      base_(base),
      gauges_(sets.size()) {
  for (const DataSetEntry& set : sets) rows_.emplace_back(ChunkGeometry(set, chunk_bytes_).count());
}

bool ChunkedPayload::write(std::size_t set, std::uint64_t offset, std::span<const std::byte> bytes,
                           std::uint64_t crc) {
  const ChunkGeometry geometry(sets_[set], chunk_bytes_);
  const std::uint64_t chunk = geometry.at(offset);
  if (bytes.size() == geometry.encoded_length()) return store(set, chunk, bytes, crc);

  std::unique_lock lock(mutex_);
  const auto [item, is_new] = open_.try_emplace({set, chunk});
  Open& open = item->second;
  if (is_new) open = begin_chunk(set, chunk);
  lock.unlock();
  const std::uint64_t begin = offset - geometry.begin(chunk);
  std::memcpy(open.bytes.data() + begin, bytes.data(), bytes.size());
  lock.lock();
  open.parts.push_back({begin, bytes.size(), crc});
  open.missing -= std::min<std::uint64_t>(bytes.size(), open.missing);
  if (open.missing != 0) return false;
  auto done = open_.extract(item);
  lock.unlock();
  const bool was_written = store(set, chunk, done.mapped().bytes, done.mapped().digest());
  lock.lock();
  spare_.push_back(std::move(done.mapped().bytes));
  return was_written;
}

ChunkedPayload::Open ChunkedPayload::begin_chunk(std::size_t set, std::uint64_t chunk) {
  Open open;
  if (!spare_.empty()) {
    open.bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  open.bytes.resize(ChunkGeometry(sets_[set], chunk_bytes_).encoded_length());
  const std::uint64_t real = sets_[set].elements * size_of(sets_[set].dtype);
  open.missing = std::min(chunk_bytes_, real - chunk * chunk_bytes_);
  std::ranges::fill(std::span(open.bytes).subspan(open.missing), std::byte{0});
  return open;
}

std::uint64_t ChunkedPayload::Open::digest() {
  std::ranges::sort(parts, {}, &Part::begin);
  std::uint64_t crc = 0, end = 0;
  for (const Part& part : parts) {
    crc = crc64_combine(crc, part.crc64, part.bytes);
    end += part.bytes;
  }
  const std::uint64_t padding = bytes.size() - std::min<std::uint64_t>(end, bytes.size());
  return crc64_combine(crc, crc64_zeros(padding), padding);
}

// Returns the encoded chunk; empty when it is to be stored uncompressed.
std::span<const std::byte> ChunkedPayload::encode(ChunkCodec& codec, std::size_t set,
                                                  std::span<const std::byte> bytes) {
  std::span<const std::byte> encoded;
  const double seconds =
      seconds_of([&] { encoded = codec.encode(bytes, size_of(sets_[set].dtype), how_.level); });
  gauges_[set].encoded(seconds, bytes.size(), encoded.empty() ? bytes.size() : encoded.size());
  return encoded;
}

/// Returns true when the chunk was written, false when the base holds it.
bool ChunkedPayload::store(std::size_t set, std::uint64_t chunk, std::span<const std::byte> bytes,
                           std::uint64_t crc) {
  const ChunkRow* const known = base_ != nullptr ? base_->find(sets_[set], chunk) : nullptr;
  ChunkRow& row = rows_[set].at(chunk);
  if (known != nullptr && is_plain(*known, bytes, crc)) {
    row = *known;
    return false;
  }
  const bool encodes = how_.mode == Compression::Mode::Zstd ||
                       (how_.mode == Compression::Mode::Auto && gauges_[set].pays());
  std::optional<BorrowedCodec> codec;
  const auto encoded =
      encodes ? encode(*codec.emplace(), set, bytes) : std::span<const std::byte>();
  const bool is_encoded = !encoded.empty();
  const auto stored = is_encoded ? encoded : bytes;
  if (is_encoded) crc = crc64(encoded);
  row = {0, static_cast<std::uint32_t>(stored.size()), is_encoded ? kBothFilters : kNoFilter, crc,
         0};
  // One version of zstd encodes equal bytes equally.
  if (known != nullptr && is_same(*known, row)) {
    row = *known;
    return false;
  }
  row.file_offset = container_.place_chunk(set, chunk, stored.size(), row.filter_mask);
  gauges_[set].written(seconds_of([&] { file_.write_at(row.file_offset, stored); }), stored.size());
  return true;
}

}  // namespace unishard::detail
