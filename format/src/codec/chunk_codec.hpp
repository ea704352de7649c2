#pragma once
// Codec of one compressed chunk: HDF5's shuffle filter (2), then a zstd frame (filter 32015), then
// a skippable frame that pads to whole pages. See SPEC.md, "Compressed data sets".
#include "unishard/format/huge_buffer.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace unishard::detail {

/// Filter masks of a chunk row: both filters were applied, or both were skipped.
inline constexpr std::uint32_t kBothFilters = 0, kNoFilter = 3;

/// Encodes and decodes chunks. Keeps about two chunks of memory between calls. Not thread-safe.
class ChunkCodec {
 public:
  /// Returns the stored bytes of `chunk`, a multiple of kPayloadAlign; empty when they would not be
  /// fewer than the chunk's. `width` is the size of an element in bytes; for `level` see
  /// Compression.
  /// Lifetime: the result is valid until the next call.
  /// Throws: Internal when zstd fails.
  std::span<const std::byte> encode(std::span<const std::byte> chunk, std::size_t width, int level);

  /// Returns page-aligned memory for stored bytes, so that a direct read fills it without a copy.
  /// Lifetime: valid until the next call of stored() or encode().
  std::span<std::byte> stored(std::size_t bytes);

  /// Decodes the first out.size() bytes of a chunk of `chunk_bytes` bytes from `stored`. Returns
  /// false when `stored` is not such a chunk; the content of `out` is then unspecified.
  /// Pre: chunk_bytes and out.size() are multiples of `width`.
  bool decode(std::span<const std::byte> stored, std::uint64_t chunk_bytes, std::size_t width,
              std::span<std::byte> out);

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
    void operator()(ZSTD_DCtx_s* context) const;
  };
  void configure(int level);

  std::unique_ptr<ZSTD_CCtx_s, Free> encoder_;
  std::unique_ptr<ZSTD_DCtx_s, Free> decoder_;
  HugeBuffer planes_, stored_;
  int level_ = -1;  ///< compression level set in `encoder_`
};

/// Borrows a codec from a pool of the process; the destructor returns it. The constructor waits
/// while as many codecs are lent as fit into IoOptions::write_buffer_bytes (8 MiB for each).
/// Thread-safe.
class BorrowedCodec {
 public:
  BorrowedCodec();
  ~BorrowedCodec();
  BorrowedCodec(const BorrowedCodec&) = delete;
  BorrowedCodec& operator=(const BorrowedCodec&) = delete;
  ChunkCodec* operator->() const { return codec_.get(); }
  ChunkCodec& operator*() const { return *codec_; }

 private:
  std::unique_ptr<ChunkCodec> codec_;
};

}  // namespace unishard::detail
