#pragma once
// The way between arrays in files and a device.
#include "device/pinned_turns.hpp"
#include "state/file_array.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

namespace unishard::trainer::detail {

/// Copies through two buffers of pinned memory, from which the device takes a piece while the next
/// one is read. Thread-safe.
class FileCopies {
 public:
  explicit FileCopies(at::Device device) : turns_(device) {}

  /// Gives the current stream a copy of all of `from` into a contiguous tensor of the device, of
  /// one dimension and of as many bytes. Returns when the file has been read.
  /// Throws: as FileArray::read() does. Lifetime: as for PinnedTurns::send().
  void read(const FileArray& from, const at::Tensor& to);
  /// Replaces the bytes of `to` from `offset` on by those of a contiguous tensor of the device, of
  /// one dimension. Waits for the current stream.
  /// Throws: as FileArray::write() does.
  void write(FileArray& to, std::uint64_t offset, const at::Tensor& from);

 private:
  std::mutex mutex_;
  PinnedTurns turns_;
};

}  // namespace unishard::trainer::detail
