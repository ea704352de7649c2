#pragma once
// What `auto` compression goes by: the time that encoding takes against the time that writing less
// saves. With e and w the seconds per byte of encoding and of writing, and r what is left of a
// byte, encoding pays when e + r * w < w.
#include "unishard/format/storage.hpp"

#include <chrono>
#include <cstdint>
#include <mutex>

namespace unishard::detail {

template <class Action>
double seconds_of(const Action& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Decides chunk by chunk, from what the chunks before have cost. Thread-safe.
class CompressionGauge {
 public:
  bool pays();
  void encoded(double seconds, std::uint64_t bytes, std::uint64_t stored_bytes);
  void written(double seconds, std::uint64_t bytes);

 private:
  std::mutex mutex_;
  std::uint64_t chunks_ = 0;
  double encode_seconds_ = 0, encoded_bytes_ = 0, encoded_stored_bytes_ = 0;
  double write_seconds_ = 0, written_bytes_ = 0;
};

/// Whether it is worth while to begin at all: encodes and writes a few MiB at the place where
/// `file`, which is empty and is so again afterwards, will have its payload.
bool compression_may_pay(File& file, int level);

}  // namespace unishard::detail
