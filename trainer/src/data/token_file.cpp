#include "unishard/trainer/token_file.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include <algorithm>
#include <vector>

namespace unishard::trainer {

TokenFile::TokenFile(Storage& storage, const Path& path, std::uint64_t context, TokenFormat format)
    : file_(storage.open(path)), context_(context), format_(format) {
  const std::uint64_t width = size_of(format.type);
  const std::uint64_t bytes = file_->size();
  if (bytes < format.header || (bytes - format.header) % width != 0) {
    raise(ErrorCode::InvalidArgument,
          "data file " + quote(path.string()) + " has " + std::to_string(bytes) +
              " bytes, which is not a whole number of " + std::to_string(8 * width) + "-bit tokens",
          "--tokens bytes reads the bytes of a text");
  }
  const std::uint64_t tokens = (bytes - format.header) / width;
  if (context == 0 || tokens < context + 1) {
    raise(ErrorCode::InvalidArgument,
          "data file " + quote(path.string()) + " has " + std::to_string(tokens) +
              " tokens; one sample needs " + std::to_string(context + 1),
          "use a longer text or a smaller --context");
  }
  samples_ = (tokens - 1) / context;
}

void TokenFile::read(std::uint64_t sample, std::span<std::int64_t> out,
                     std::int64_t vocabulary) const {
  if (sample >= samples_ || out.size() != context_ + 1) {
    raise(ErrorCode::Internal, "TokenFile::read: outside of the file");
  }
  read_from(format_.header + sample * context_ * size_of(format_.type), out, vocabulary);
}

void TokenFile::read_from(std::uint64_t begin, std::span<std::int64_t> out,
                          std::int64_t vocabulary) const {
  const std::uint64_t width = size_of(format_.type);
  std::vector<std::byte> window(out.size() * width);
  file_->read_at(begin, window);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = 0;
    for (std::size_t byte = width; byte-- > 0;)
      out[i] = (out[i] << 8) | std::to_integer<std::int64_t>(window[i * width + byte]);
    if (out[i] < vocabulary) continue;
    raise(ErrorCode::InvalidArgument,
          "data file " + quote(file_->path().string()) + ": token " + std::to_string(out[i]) +
              " at byte " + std::to_string(begin + i * width) +
              " is outside of the model's vocabulary of " + std::to_string(vocabulary),
          "--vocab-size sets the vocabulary, --tokens how the file is read");
  }
}

void TokenFile::require_vocabulary(std::int64_t vocabulary) const {
  constexpr std::uint64_t kAll = std::uint64_t{256} << 20, kParts = 64, kPartTokens = 65536;
  const std::uint64_t width = size_of(format_.type);
  if (width == 1 && vocabulary >= kByteVocabulary) return;
  const std::uint64_t tokens = (file_->size() - format_.header) / width;
  const std::uint64_t stride =
      file_->size() <= kAll ? kPartTokens : std::max(kPartTokens, tokens / kParts);
  std::vector<std::int64_t> part;
  for (std::uint64_t at = 0; at < tokens; at += stride) {
    part.resize(std::min(kPartTokens, tokens - at));
    read_from(format_.header + at * width, part, vocabulary);
  }
}

std::uint64_t TokenFile::digest() const {
  constexpr std::uint64_t kParts = 64, kPartBytes = 65536;
  const std::uint64_t bytes = file_->size(), last = bytes - std::min(bytes, kPartBytes);
  std::vector<std::byte> part(std::min(bytes, kPartBytes));
  std::uint64_t crc = 0;
  for (std::uint64_t i = 0; i < kParts; ++i) {
    const std::uint64_t at = last / (kParts - 1) * i;
    file_->read_at(i + 1 == kParts ? last : at, part);
    crc = crc64(part, crc);
    if (last == 0) break;
  }
  return crc;
}

}  // namespace unishard::trainer
