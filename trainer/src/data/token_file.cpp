#include "unishard/trainer/token_file.hpp"

#include "unishard/format/error.hpp"

#include <vector>

namespace unishard::trainer {

TokenFile::TokenFile(Storage& storage, const Path& path, std::uint64_t context)
    : file_(storage.open(path)), context_(context) {
  const std::uint64_t bytes = file_->size();
  if (context == 0 || bytes < context + 1) {
    raise(ErrorCode::InvalidArgument,
          "data file " + quote(path.string()) + " has " + std::to_string(bytes) +
              " bytes; one sample needs " + std::to_string(context + 1),
          "use a longer text or a smaller --context");
  }
  samples_ = (bytes - 1) / context;
}

void TokenFile::read(std::uint64_t sample, std::span<std::int64_t> out) const {
  if (sample >= samples_ || out.size() != context_ + 1) {
    raise(ErrorCode::Internal, "TokenFile::read: outside of the file");
  }
  std::vector<std::byte> window(out.size());
  file_->read_at(sample * context_, window);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::to_integer<std::int64_t>(window[i]);
}

}  // namespace unishard::trainer
