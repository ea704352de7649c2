#pragma once
// Reads many short runs of elements with few reads: runs that are near each other are read at once,
// with what lies between them, and then copied to where they belong.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace unishard {

/// Elements that lie side by side where they are read and where they go.
struct ReadRun {
  std::uint64_t from = 0;  ///< first element where it is read
  std::uint64_t to = 0;    ///< its number in the output
  std::uint64_t count = 0;
};

/// Not thread-safe. Memory: up to 1.5 MiB.
class BatchedRead {
 public:
  /// Reads the elements [begin, begin + out.size() / width).
  using Read = std::function<void(std::uint64_t begin, std::span<std::byte> out)>;
  /// Returns true when the elements from `end` to `begin` are so few that reading them costs less
  /// than a second read.
  using IsNear = std::function<bool(std::uint64_t end, std::uint64_t begin)>;

  /// `width` is the bytes of an element.
  /// Lifetime: `out` must outlive this object.
  BatchedRead(std::uint64_t width, std::span<std::byte> out, Read read, IsNear is_near);

  /// Adds a run. It may be read now or later.
  /// Pre: it begins where the run before it ends, or behind.
  void add(const ReadRun& run);
  /// Reads what was not read yet.
  void flush();

 private:
  std::span<std::byte> to(const ReadRun& run) const;

  const std::uint64_t width_;
  const std::span<std::byte> out_;
  const Read read_;
  const IsNear is_near_;
  std::vector<ReadRun> batch_;
  std::vector<std::byte> buffer_;
};

}  // namespace unishard
