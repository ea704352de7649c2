#include "shard/compressed_payload.hpp"

#include "unishard/format/crc64.hpp"

#include <algorithm>
#include <cstring>

namespace unishard::detail {

CompressedPayload::CompressedPayload(File& file, Container& container,
                                     std::span<const DataSetEntry> sets, Compression how)
    : file_(file), container_(container), sets_(sets), how_(how), gauges_(sets.size()) {
  for (const DataSetEntry& set : sets)
    rows_.emplace_back(chunk_count(set.padded_bytes(), kChunkBytes));
}

void CompressedPayload::write(std::size_t set, std::uint64_t offset,
                              std::span<const std::byte> bytes) {
  const std::uint64_t chunk = offset / kChunkBytes;
  if (bytes.size() == sets_[set].encoded_chunk_bytes(kChunkBytes)) return store(set, chunk, bytes);

  std::unique_lock lock(mutex_);
  const auto [item, is_new] = open_.try_emplace({set, chunk});
  Open& open = item->second;
  if (is_new) open = begin_chunk(set, chunk);
  lock.unlock();
  std::ranges::copy(bytes,
                    open.bytes.begin() + static_cast<std::ptrdiff_t>(offset - chunk * kChunkBytes));
  lock.lock();
  open.missing -= std::min<std::uint64_t>(bytes.size(), open.missing);
  if (open.missing != 0) return;
  auto done = open_.extract(item);
  lock.unlock();
  store(set, chunk, done.mapped().bytes);
  lock.lock();
  spare_.push_back(std::move(done.mapped().bytes));
}

CompressedPayload::Open CompressedPayload::begin_chunk(std::size_t set, std::uint64_t chunk) {
  Open open;
  if (!spare_.empty()) {
    open.bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  open.bytes.resize(sets_[set].encoded_chunk_bytes(kChunkBytes));
  const std::uint64_t real = sets_[set].elements * size_of(sets_[set].dtype);
  open.missing = std::min(kChunkBytes, real - chunk * kChunkBytes);
  std::ranges::fill(std::span(open.bytes).subspan(open.missing), std::byte{0});
  return open;
}

// Empty when the chunk is to be stored as it is.
std::span<const std::byte> CompressedPayload::encode(ChunkCodec& codec, std::size_t set,
                                                     std::span<const std::byte> bytes) {
  std::span<const std::byte> encoded;
  const double seconds =
      seconds_of([&] { encoded = codec.encode(bytes, size_of(sets_[set].dtype), how_.level); });
  gauges_[set].encoded(seconds, bytes.size(), encoded.empty() ? bytes.size() : encoded.size());
  return encoded;
}

void CompressedPayload::store(std::size_t set, std::uint64_t chunk,
                              std::span<const std::byte> bytes) {
  if (how_.mode == Compression::Mode::Auto && !gauges_[set].pays())
    return put(set, chunk, bytes, kNoFilter);
  const BorrowedCodec codec;
  const std::span<const std::byte> encoded = encode(*codec, set, bytes);
  if (encoded.empty()) return put(set, chunk, bytes, kNoFilter);
  put(set, chunk, encoded, kBothFilters);
}

void CompressedPayload::put(std::size_t set, std::uint64_t chunk, std::span<const std::byte> stored,
                            std::uint32_t filter_mask) {
  const std::uint64_t offset = container_.place_chunk(set, chunk, stored.size(), filter_mask);
  gauges_[set].written(seconds_of([&] { file_.write_at(offset, stored); }), stored.size());
  rows_[set].at(chunk) = {offset, static_cast<std::uint32_t>(stored.size()), filter_mask,
                          crc64(stored)};
}

}  // namespace unishard::detail
