#pragma once
// The way of what the host has, piece by piece, to a device, and back.
#include "unishard/format/huge_buffer.hpp"

#include "device/device_copies.hpp"
#include "device/pinned_memory.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <span>

namespace unishard::trainer::detail {

/// Two buffers of pinned memory that take turns: the host fills one while the device reads the
/// other. They grow to the largest piece. Not thread-safe. The destructor waits for the copies.
class PinnedTurns {
 public:
  explicit PinnedTurns(at::Device device) : device_(device) {}

  /// Returns memory for the next piece, of any contents. Blocks until the device has the piece
  /// before the last one.
  std::span<std::byte> next(std::size_t bytes) {
    turn_ = 1 - turn_;
    Buffer& buffer = buffers_[turn_];
    buffer.copies.wait();
    if (buffer.memory.bytes().size() < bytes) {
      buffer.pinned.reset();
      buffer.memory = HugeBuffer(bytes);
      buffer.pinned.emplace(buffer.memory.bytes(), device_);
    }
    return buffer.memory.bytes().first(bytes);
  }
  /// Gives a contiguous tensor of the device the first bytes of the memory that next() returned
  /// last, behind the work of the current stream and before what that is given from now on.
  /// Lifetime: `to` must live until that stream has done what it is given now.
  void send(const at::Tensor& to) {
    Buffer& buffer = buffers_[turn_];
    buffer.copies.start(to, buffer.memory.bytes().first(to.nbytes()));
    buffer.copies.make_current_stream_wait(device_);
  }
  /// Returns a copy of a contiguous tensor of the device in the memory that next() returned last.
  /// Waits for the work of the current stream.
  std::span<const std::byte> bring(const at::Tensor& from) {
    Buffer& buffer = buffers_[turn_];
    const std::span<std::byte> to = buffer.memory.bytes().first(from.nbytes());
    buffer.copies.start(to, from);
    buffer.copies.wait();
    return to;
  }

 private:
  /// The memory, and the copy that reads it.
  struct Buffer {
    HugeBuffer memory;
    std::optional<PinnedMemory> pinned;
    DeviceCopies copies;  ///< last: its destructor waits
  };

  at::Device device_;
  std::array<Buffer, 2> buffers_;
  std::size_t turn_ = 0;
};

}  // namespace unishard::trainer::detail
