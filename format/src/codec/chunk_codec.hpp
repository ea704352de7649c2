#pragma once
// One compressed chunk: HDF5's shuffle filter (2), then a zstd frame (filter 32015), then a
// skippable frame that fills up to whole pages. See SPEC.md "Compressed data sets".
#include "unishard/format/huge_buffer.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace unishard::detail {

/// Bits of a chunk row's filter mask: which of the two filters were skipped.
inline constexpr std::uint32_t kBothFilters = 0, kNoFilter = 3;

/// Encodes and decodes; keeps its memory, of about two chunks. One thread at a time.
class ChunkCodec {
 public:
  /// The stored bytes of `chunk`, whose elements have `width` bytes, a multiple of kPayloadAlign;
  /// empty when they would not be fewer. Valid until the next call. `level` as in Compression.
  std::span<const std::byte> encode(std::span<const std::byte> chunk, std::size_t width, int level);

  /// Memory for stored bytes that are to be decoded, page-aligned so that they come straight from
  /// the disk. Valid until the next call but decode().
  std::span<std::byte> stored(std::size_t bytes);

  /// The first out.size() bytes of the chunk of `chunk_bytes` that `stored` holds; both are
  /// multiples of `width`. False when the bytes are not such a chunk; `out` then holds anything.
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
  int level_ = -1;  ///< that `encoder_` is set to
};

/// A codec of the process's own, given back on destruction. Any thread; waits while as many are
/// lent as suit IoOptions::write_buffer_bytes (8 MiB for each).
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
