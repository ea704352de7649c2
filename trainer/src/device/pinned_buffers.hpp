#pragma once
// A few buffers of pinned memory, through which threads copy from and to a device piece by piece.
#include "unishard/format/huge_buffer.hpp"

#include "device/device_copies.hpp"
#include "device/pinned_memory.hpp"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace unishard::trainer::detail {

/// Thread-safe.
class PinnedBuffers {
 public:
  static constexpr std::size_t kBytes = std::size_t{8} << 20;  ///< of a buffer

  /// Memory, and the stream that fills it.
  struct Buffer {
    std::span<std::byte> memory;
    DeviceCopies copies;
  };

  /// Pins `count` buffers for copies from and to `device`. Takes no memory for the host.
  PinnedBuffers(c10::Device device, std::size_t count);
  PinnedBuffers(const PinnedBuffers&) = delete;
  PinnedBuffers& operator=(const PinnedBuffers&) = delete;

  /// A buffer that the caller has until the destructor.
  /// Lifetime: the buffers must outlive it.
  class Loan {
   public:
    Loan(PinnedBuffers& buffers, Buffer& buffer) : buffers_(buffers), buffer_(buffer) {}
    ~Loan() { buffers_.give_back(buffer_); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    /// Copies a contiguous tensor of a device, of at most kBytes, and waits for it. Returns the
    /// copy.
    std::span<const std::byte> copy(const at::Tensor& from);
    /// Returns the first bytes of the buffer, at most kBytes.
    std::span<std::byte> memory(std::size_t bytes) const { return buffer_.memory.first(bytes); }
    /// Gives the current stream of a device a copy of the first bytes of the buffer into a
    /// contiguous tensor, and waits for the stream.
    void send(const at::Tensor& to);

   private:
    PinnedBuffers& buffers_;
    Buffer& buffer_;
  };

  /// Blocks until a buffer is free.
  Loan lend();

 private:
  void give_back(Buffer& buffer);

  HugeBuffer memory_;
  std::optional<PinnedMemory> pinned_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::deque<Buffer> buffers_;
  std::vector<Buffer*> free_;
};

}  // namespace unishard::trainer::detail
