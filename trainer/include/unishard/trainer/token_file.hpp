#pragma once
// A text file as byte tokens: sample i is the window of context + 1 bytes at i * context. Reads by
// position, so memory does not grow with the file. Safe from several threads.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace unishard::trainer {

inline constexpr std::int64_t kByteVocabulary = 256;

class TokenFile {
 public:
  /// Throws InvalidArgument when the file is shorter than one sample.
  TokenFile(Storage& storage, const Path& path, std::uint64_t context);

  std::uint64_t samples() const { return samples_; }
  std::uint64_t context() const { return context_; }
  /// Pre: sample < samples() and out.size() == context() + 1.
  void read(std::uint64_t sample, std::span<std::int64_t> out) const;

 private:
  std::unique_ptr<File> file_;
  std::uint64_t context_ = 0;
  std::uint64_t samples_ = 0;
};

}  // namespace unishard::trainer
