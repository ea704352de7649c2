#pragma once
// A few buffers of pinned memory, through which threads copy what is on a device piece by piece.
#include "unishard/format/huge_buffer.hpp"

#include "device/pinned_memory.hpp"

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace unishard::trainer::detail {

/// Thread-safe.
class PinnedBuffers {
 public:
  static constexpr std::size_t kBytes = std::size_t{8} << 20;  ///< of a buffer

  /// Pins `count` buffers for copies of `device`. Takes no memory for the host.
  PinnedBuffers(c10::Device device, std::size_t count);
  PinnedBuffers(const PinnedBuffers&) = delete;
  PinnedBuffers& operator=(const PinnedBuffers&) = delete;

  /// A buffer that the caller has until the destructor.
  /// Lifetime: the buffers must outlive it.
  class Loan {
   public:
    Loan(PinnedBuffers& buffers, std::span<std::byte> bytes) : buffers_(buffers), bytes_(bytes) {}
    ~Loan() { buffers_.give_back(bytes_); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    std::span<std::byte> bytes() const { return bytes_; }

   private:
    PinnedBuffers& buffers_;
    std::span<std::byte> bytes_;
  };

  /// Blocks until a buffer is free.
  Loan lend();

 private:
  void give_back(std::span<std::byte> bytes);

  HugeBuffer memory_;
  std::optional<PinnedMemory> pinned_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::span<std::byte>> free_;
};

}  // namespace unishard::trainer::detail
