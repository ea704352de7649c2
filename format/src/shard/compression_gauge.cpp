#include "shard/compression_gauge.hpp"

#include "unishard/format/huge_buffer.hpp"
#include "unishard/format/shard_entry.hpp"

#include "codec/chunk_codec.hpp"

#include <cstring>
#include <random>

namespace unishard::detail {
namespace {

/// The first kTrial chunks are always encoded, to measure the cost; afterwards one in kRetry is.
constexpr std::uint64_t kTrial = 2, kRetry = 128;
/// After this many bytes, earlier measurements count half.
constexpr double kMemory = 256.0 * (1 << 20);

/// Bytes that compression_may_pay() writes: two blocks of direct I/O.
constexpr std::uint64_t kProbeBytes = std::uint64_t{4} << 20;

/// Returns one block of random float32 numbers, which compress like weights.
HugeBuffer like_weights() {
  HugeBuffer buffer(std::size_t{2} << 20);
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const std::span<std::byte> bytes = buffer.bytes();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    const float number = uniform(random);
    std::memcpy(bytes.data() + at, &number, sizeof(number));
  }
  return buffer;
}

bool pays(double encode, double write, double left) { return encode + left * write < write; }

}  // namespace

bool CompressionGauge::pays() {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t chunk = chunks_++;
  if (chunk < kTrial || chunk % kRetry == 0 || encoded_bytes_ == 0 || written_bytes_ == 0)
    return true;
  const double encode = encode_seconds_ / encoded_bytes_;
  const double write = write_seconds_ / written_bytes_;
  return detail::pays(encode, write, encoded_stored_bytes_ / encoded_bytes_);
}

void CompressionGauge::encoded(double seconds, std::uint64_t bytes, std::uint64_t stored_bytes) {
  const std::scoped_lock lock(mutex_);
  if (encoded_bytes_ > kMemory) {
    encode_seconds_ /= 2;
    encoded_bytes_ /= 2;
    encoded_stored_bytes_ /= 2;
  }
  encode_seconds_ += seconds;
  encoded_bytes_ += static_cast<double>(bytes);
  encoded_stored_bytes_ += static_cast<double>(stored_bytes);
}

void CompressionGauge::written(double seconds, std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  if (written_bytes_ > kMemory) {
    write_seconds_ /= 2;
    written_bytes_ /= 2;
  }
  write_seconds_ += seconds;
  written_bytes_ += static_cast<double>(bytes);
}

bool compression_may_pay(File& file, int level) {
  const HugeBuffer buffer = like_weights();
  const auto chunk = buffer.bytes().first(kChunkBytes);
  std::uint64_t stored = 0;
  double encode = 0;
  {
    const BorrowedCodec codec;
    codec->encode(chunk, sizeof(float), level);  // once for its memory
    encode = seconds_of([&] { stored = codec->encode(chunk, sizeof(float), level).size(); });
  }
  file.reserve(kProbeBytes);
  const double write = seconds_of([&] {
    for (std::uint64_t at = 0; at < kProbeBytes; at += buffer.bytes().size())
      file.write_at(at, buffer.bytes());
  });
  file.resize(0);
  return stored != 0 &&
         detail::pays(encode / static_cast<double>(kChunkBytes),
                      write / static_cast<double>(kProbeBytes),
                      static_cast<double>(stored) / static_cast<double>(kChunkBytes));
}

}  // namespace unishard::detail
