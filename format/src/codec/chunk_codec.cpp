#include "codec/chunk_codec.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/io.hpp"
#include "unishard/format/limits.hpp"

#include "base/little_endian.hpp"
#include "codec/byte_planes.hpp"

#define ZSTD_STATIC_LINKING_ONLY  // names ZSTD_c_literalCompressionMode; the shared library has it
#include <zstd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace unishard::detail {
namespace {

constexpr std::uint32_t kSkippableMagic = 0x184D2A50;
constexpr std::size_t kSkippableHead = 8;
constexpr std::uint64_t kBytesPerCodec = std::uint64_t{8} << 20;

template <class T>
T* made(T* context) {
  if (context == nullptr) throw std::bad_alloc();
  return context;
}

std::size_t checked(std::size_t result) {
  if (ZSTD_isError(result))
    raise(ErrorCode::Internal, std::string("zstd: ") + ZSTD_getErrorName(result));
  return result;
}

/// Takes a huge page even for fewer bytes. With small pages a fast disk runs at half to full speed,
/// depending on whether they happen to be adjacent.
std::span<std::byte> at_least(HugeBuffer& memory, std::size_t bytes) {
  if (memory.bytes().size() < bytes) memory = HugeBuffer(std::max(bytes, HugeBuffer::kHugePage));
  return memory.bytes().first(bytes);
}

std::span<const std::byte> fill_page(std::span<std::byte> stored, std::size_t frame) {
  std::size_t end = round_up(frame, kPayloadAlign, "a chunk");
  if (end != frame && end - frame < kSkippableHead) end += kPayloadAlign;
  if (end != frame) {
    const std::span<std::byte> filler = stored.subspan(frame, end - frame);
    std::memset(filler.data(), 0, filler.size());
    store(filler, 0, kSkippableMagic);
    store(filler, 4, static_cast<std::uint32_t>(filler.size() - kSkippableHead));
  }
  return stored.first(end);
}

}  // namespace

void ChunkCodec::Free::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }
void ChunkCodec::Free::operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }

std::span<std::byte> ChunkCodec::stored(std::size_t bytes) { return at_least(stored_, bytes); }

std::span<const std::byte> ChunkCodec::encode(std::span<const std::byte> chunk, std::size_t width,
                                              int level) {
  if (!encoder_) encoder_.reset(made(ZSTD_createCCtx()));
  if (level != level_) configure(level);
  const auto planes = at_least(planes_, chunk.size());
  split_planes(chunk, width, planes);
  const auto room = stored(ZSTD_compressBound(chunk.size()) + kPayloadAlign);
  const std::size_t frame = checked(
      ZSTD_compress2(encoder_.get(), room.data(), room.size(), planes.data(), planes.size()));
  const std::span<const std::byte> filled = fill_page(room, frame);
  return filled.size() < chunk.size() ? filled : std::span<const std::byte>();
}

void ChunkCodec::configure(int level) {
  const auto set = [this](ZSTD_cParameter parameter, int value) {
    checked(ZSTD_CCtx_setParameter(encoder_.get(), parameter, value));
  };
  checked(ZSTD_CCtx_reset(encoder_.get(), ZSTD_reset_session_and_parameters));
  set(ZSTD_c_compressionLevel, level > 0 ? level : -1);
  if (level == 0) {  // no search for matches, but entropy coding (negative levels switch it off)
    set(ZSTD_c_strategy, ZSTD_fast);
    set(ZSTD_c_hashLog, ZSTD_HASHLOG_MIN);
    set(ZSTD_c_minMatch, ZSTD_MINMATCH_MAX);
    set(ZSTD_c_targetLength, ZSTD_TARGETLENGTH_MAX);
    set(ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
  }
  level_ = level;
}

bool ChunkCodec::decode(std::span<const std::byte> stored, std::uint64_t chunk_bytes,
                        std::size_t width, std::span<std::byte> out) {
  if (!decoder_) decoder_.reset(made(ZSTD_createDCtx()));
  const bool in_place = width == 1 && out.size() == chunk_bytes;
  const auto planes = in_place ? out : at_least(planes_, chunk_bytes);
  const std::size_t content = ZSTD_decompressDCtx(decoder_.get(), planes.data(), planes.size(),
                                                  stored.data(), stored.size());
  if (content != chunk_bytes) return false;
  if (!in_place) join_planes(planes, width, out);
  return true;
}

namespace {

struct Pool {
  std::mutex mutex;
  std::condition_variable returned;
  std::vector<std::unique_ptr<ChunkCodec>> free;
  std::uint64_t lent = 0;
};
Pool& pool() {
  static Pool codecs;
  return codecs;
}

}  // namespace

BorrowedCodec::BorrowedCodec() {
  const auto most = std::max<std::uint64_t>(1, io_options().write_buffer_bytes / kBytesPerCodec);
  std::unique_lock lock(pool().mutex);
  pool().returned.wait(lock, [most] { return pool().lent < most; });
  pool().free.reserve(pool().free.size() + pool().lent + 1);  // giving back must not fail
  if (pool().free.empty()) {
    codec_ = std::make_unique<ChunkCodec>();
  } else {
    codec_ = std::move(pool().free.back());
    pool().free.pop_back();
  }
  ++pool().lent;
}

BorrowedCodec::~BorrowedCodec() {
  {
    const std::scoped_lock lock(pool().mutex);
    --pool().lent;
    pool().free.push_back(std::move(codec_));
  }
  pool().returned.notify_one();
}

}  // namespace unishard::detail
