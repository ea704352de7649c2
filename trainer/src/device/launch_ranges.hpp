#pragma once
// How the elements of several ranges are shared out to the thread blocks of one launch. A launch
// carries its ranges in its arguments, so nothing is allocated or copied for it.
#include "device/host_device.hpp"

#include <cstddef>
#include <cstdint>

namespace unishard::trainer::detail {

/// The elements [begin, end), which thread blocks from `first_block` on work on.
struct LaunchRange {
  std::size_t begin = 0, end = 0;
  std::uint32_t first_block = 0;
};

/// At most kMost ranges, each with further members of its own. A thread block has at most
/// kBlockElements elements, all of one range.
template <class Range>
struct LaunchRanges {
  static constexpr std::size_t kMost = 64;
  static constexpr std::size_t kBlockElements = 4096;

  Range ranges[kMost];
  std::uint32_t count = 0;
  std::uint32_t blocks = 0;  ///< of the launch

  bool is_full() const { return count == kMost; }
  /// Pre: !is_full(), and the range has elements.
  void add(Range range) {
    range.first_block = blocks;
    blocks +=
        static_cast<std::uint32_t>((range.end - range.begin + kBlockElements - 1) / kBlockElements);
    ranges[count++] = range;
  }

  /// Returns the index of the range that a thread block works on. Pre: block < blocks.
  UNISHARD_HOST_DEVICE std::uint32_t of_block(std::uint32_t block) const {
    std::uint32_t first = 0, last = count - 1;
    while (first < last) {
      const std::uint32_t middle = (first + last + 1) / 2;
      if (ranges[middle].first_block <= block) {
        first = middle;
      } else {
        last = middle - 1;
      }
    }
    return first;
  }
  /// Returns the first element of a thread block, in range `index`.
  UNISHARD_HOST_DEVICE std::size_t begin_of(std::uint32_t block, std::uint32_t index) const {
    return ranges[index].begin + std::size_t{block - ranges[index].first_block} * kBlockElements;
  }
  /// Returns the end of the elements of a thread block that begins with element `begin`.
  UNISHARD_HOST_DEVICE std::size_t end_of(std::size_t begin, std::uint32_t index) const {
    const std::size_t end = begin + kBlockElements;
    return end < ranges[index].end ? end : ranges[index].end;
  }
};

}  // namespace unishard::trainer::detail
