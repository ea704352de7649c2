#include "unishard/trainer/token_file.hpp"

#include "unishard/format/error.hpp"

#include <vector>

namespace unishard::trainer {

TokenType token_type_of(const Path& path) {
  return path.extension() == ".bin" ? TokenType::UInt16 : TokenType::Bytes;
}

TokenFile::TokenFile(Storage& storage, const Path& path, std::uint64_t context, TokenType type)
    : file_(storage.open(path)), context_(context), width_(type == TokenType::UInt16 ? 2 : 1) {
  const std::uint64_t bytes = file_->size();
  if (bytes % width_ != 0) {
    raise(ErrorCode::InvalidArgument,
          "data file " + quote(path.string()) + " has " + std::to_string(bytes) +
              " bytes, which is not a whole number of 16-bit tokens",
          "--tokens bytes reads the bytes of a text");
  }
  const std::uint64_t tokens = bytes / width_;
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
  std::vector<std::byte> window(out.size() * width_);
  const std::uint64_t begin = sample * context_ * width_;
  file_->read_at(begin, window);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = std::to_integer<std::int64_t>(window[i * width_]);
    if (width_ == 2) out[i] |= std::to_integer<std::int64_t>(window[i * 2 + 1]) << 8;
    if (out[i] < vocabulary) continue;
    raise(ErrorCode::InvalidArgument,
          "data file " + quote(file_->path().string()) + ": token " + std::to_string(out[i]) +
              " at byte " + std::to_string(begin + i * width_) +
              " is outside of the model's vocabulary of " + std::to_string(vocabulary),
          "--vocab-size sets the vocabulary, --tokens how the file is read");
  }
}

}  // namespace unishard::trainer
