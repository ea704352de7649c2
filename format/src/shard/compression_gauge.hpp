#pragma once
// Decides for `auto` compression whether encoding takes less time than writing fewer bytes saves.
// With e and w the seconds per byte of encoding and writing, and r the compressed size per byte,
// encoding pays when e + r * w < w.
#include "unishard/format/storage.hpp"

#include <chrono>
#include <cstdint>
#include <mutex>

namespace unishard::detail {

template <class Action>
/// Returns the seconds of wall time that `action` takes.
double seconds_of(const Action& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Decides for each chunk from the measured cost of earlier chunks. Thread-safe.
class CompressionGauge {
 public:
  /// Returns true when the next chunk should be encoded.
  bool pays();
  /// Records that encoding `bytes` bytes took `seconds` and gave `stored_bytes`.
  void encoded(double seconds, std::uint64_t bytes, std::uint64_t stored_bytes);
  void written(double seconds, std::uint64_t bytes);

 private:
  std::mutex mutex_;
  std::uint64_t chunks_ = 0;
  double encode_seconds_ = 0, encoded_bytes_ = 0, encoded_stored_bytes_ = 0;
  double write_seconds_ = 0, written_bytes_ = 0;
};

/// Returns false when compression cannot pay on this disk: encodes 1 MiB and writes 4 MiB at the
/// start of `file`, then truncates it to 0 bytes.
/// Pre: `file` is empty.
bool compression_may_pay(File& file, int level);

}  // namespace unishard::detail
