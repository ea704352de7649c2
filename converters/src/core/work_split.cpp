#include "unishard/converters/work_split.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace unishard::converters {

// Assigns the largest output first, always to the process with the fewest bytes so far.
std::vector<bool> owned(std::span<const std::uint64_t> bytes, const WorkSplit& share) {
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) { return bytes[i]; });
  std::vector<std::uint64_t> loads(share.size);
  std::vector<bool> ours(bytes.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(loads);
    *least += bytes[i];
    ours[i] = least - loads.begin() == share.rank;
  }
  return ours;
}

ByteRun owned_run(std::uint64_t total_bytes, std::uint64_t unit_bytes, const WorkSplit& share) {
  const std::uint64_t units = total_bytes / unit_bytes + (total_bytes % unit_bytes != 0 ? 1 : 0);
  const auto cut = [&](std::uint32_t rank) {
    const std::uint64_t before =
        units / share.size * rank + std::min<std::uint64_t>(units % share.size, rank);
    return before >= units ? total_bytes : before * unit_bytes;
  };
  return {cut(share.rank), cut(share.rank + 1)};
}

std::pair<std::uint64_t, std::uint64_t> ByteRun::elements_in(std::uint64_t first_byte,
                                                             std::uint64_t element_bytes,
                                                             std::uint64_t elements) const {
  const auto first_from = [&](std::uint64_t byte) -> std::uint64_t {
    if (byte <= first_byte) return 0;
    const std::uint64_t distance = byte - first_byte;
    const std::uint64_t number = distance / element_bytes + (distance % element_bytes != 0 ? 1 : 0);
    return std::min(number, elements);
  };
  return {first_from(begin), first_from(end)};
}

}  // namespace unishard::converters
