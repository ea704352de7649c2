#pragma once
// The launches of a device that together are the update of one unit.
#include "device/launch_ranges.hpp"
#include "optimizer/update_arrays.hpp"

#include <cstring>
#include <span>
#include <variant>

namespace unishard::trainer::detail {

struct UpdateRange : LaunchRange {
  std::uint32_t rule = 0;  ///< its index in the launch
};

/// What one launch updates, by rules of one kind. It is copied to the device as it is.
template <class R>
struct UpdateLaunch {
  static constexpr std::size_t kMostRules = 8;
  union Slot {
    Slot() {}
    R rule;
  };

  LaunchRanges<UpdateRange> parts;
  Slot rules[kMostRules];
  std::uint32_t rule_count = 0;

  /// Returns false, and changes nothing, when there is no room.
  bool add(const R& rule, std::size_t begin, std::size_t count) {
    std::uint32_t index = 0;
    while (index < rule_count && std::memcmp(&rules[index].rule, &rule, sizeof rule) != 0) ++index;
    if (parts.is_full() || index == kMostRules) return false;
    if (index == rule_count) {
      // Bytes, so that those between its members are equal for equal rules.
      std::memcpy(&rules[rule_count++].rule, &rule, sizeof rule);
    }
    UpdateRange range;
    range.begin = begin;
    range.end = begin + count;
    range.rule = index;
    parts.add(range);
    return true;
  }
};

/// Calls use(launch) for launches that together update the segments whose rule is an R.
template <class R, class Use>
void for_each_launch(std::span<const RuleSegment> segments, const Use& use) {
  UpdateLaunch<R> launch;
  for (const RuleSegment& segment : segments) {
    const R* const rule = std::get_if<R>(&segment.rule);
    if (rule == nullptr || segment.count == 0) continue;
    if (launch.add(*rule, segment.begin, segment.count)) continue;
    use(launch);
    launch = {};
    launch.add(*rule, segment.begin, segment.count);
  }
  if (launch.parts.count > 0) use(launch);
}

namespace launches {
template <class Use, class... R>
void for_each_kind(std::span<const RuleSegment> segments, const Use& use,
                   const std::variant<R...>*) {
  (for_each_launch<R>(segments, use), ...);
}
}  // namespace launches

/// Calls use(launch) for launches that together update all segments: one for most units.
template <class Use>
void for_each_launch_of_any(std::span<const RuleSegment> segments, const Use& use) {
  launches::for_each_kind(segments, use, static_cast<const Rule*>(nullptr));
}

}  // namespace unishard::trainer::detail
