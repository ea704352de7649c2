#pragma once
// A file of tokens. Sample i is the window of context + 1 tokens that begins at token i * context.
// Memory does not grow with the file.
#include "unishard/format/storage.hpp"
#include "unishard/trainer/token_format.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace unishard::trainer {

/// Thread-safe.
class TokenFile {
 public:
  /// Throws: InvalidArgument when the file is shorter than one sample or is not a whole number of
  /// tokens.
  TokenFile(Storage& storage, const Path& path, std::uint64_t context, TokenFormat format = {});

  std::uint64_t samples() const { return samples_; }
  std::uint64_t context() const { return context_; }
  /// Reads the tokens of `sample` into `out`.
  /// Pre: sample < samples() and out.size() == context() + 1.
  /// Throws: InvalidArgument, naming the file and the byte, for a token that is not below
  /// `vocabulary`.
  void read(std::uint64_t sample, std::span<std::int64_t> out,
            std::int64_t vocabulary = std::int64_t{1} << 32) const;
  /// Looks at every token of a file of up to 256 MiB, and at 64 evenly spread parts of a larger
  /// one. Throws: as read() for a token that is not below `vocabulary`.
  void require_vocabulary(std::int64_t vocabulary) const;
  /// Returns a CRC-64 of up to 64 parts of 64 KiB, evenly spread over the file. Files of one size
  /// with different digests differ; the same digest says that these parts are equal.
  std::uint64_t digest() const;

 private:
  /// Reads whole tokens from byte `begin` into `out`. Throws: as read().
  void read_from(std::uint64_t begin, std::span<std::int64_t> out, std::int64_t vocabulary) const;

  std::unique_ptr<File> file_;
  std::uint64_t context_ = 0;
  TokenFormat format_;
  std::uint64_t samples_ = 0;
};

}  // namespace unishard::trainer
