#include "formats/deepspeed/slot_matcher.hpp"

#include <algorithm>
#include <numeric>

namespace unishard::converters::deepspeed {
namespace {

/// Upper bound on open possibilities. Real models have a handful.
constexpr std::size_t kPossibilities = 4096;
constexpr std::uint8_t kSeveral = 2;

}  // namespace

SlotMatcher::SlotMatcher(std::vector<std::size_t> group_sizes, std::size_t candidates, Fits fits)
    : sizes_(std::move(group_sizes)),
      candidates_(candidates),
      left_over_(0),
      fits_(std::move(fits)) {
  const std::size_t slots = std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0});
  if (slots > candidates) return;
  left_over_ = candidates - slots;
  layers_.push_back({{Taken(sizes_.size(), 0), 1}});
  for (std::size_t i = 0; i < candidates; ++i) {
    advance(i);
    if (layers_.back().empty()) return;
    if (layers_.back().size() > kPossibilities) return;
  }
  const std::uint8_t ways = layers_.back().begin()->second;  // all slots are taken: one entry
  outcome_ = ways == kSeveral ? Outcome::Several : Outcome::One;
}

void SlotMatcher::advance(std::size_t candidate) {
  std::map<Taken, std::uint8_t> next;
  const auto add = [&](const Taken& taken, std::uint8_t ways) {
    std::uint8_t& known = next[taken];
    known = std::min<std::uint8_t>(kSeveral, static_cast<std::uint8_t>(known + ways));
  };
  for (const auto& [taken, ways] : layers_.back()) {
    const std::size_t used = std::accumulate(taken.begin(), taken.end(), std::size_t{0});
    if (candidate - used < left_over_) add(taken, ways);
    for (std::size_t g = 0; g < sizes_.size(); ++g) {
      if (taken[g] == sizes_[g] || !fits_(g, taken[g], candidate)) continue;
      Taken more = taken;
      ++more[g];
      add(more, ways);
    }
  }
  layers_.push_back(std::move(next));
}

std::pair<std::size_t, SlotMatcher::Taken> SlotMatcher::step_back(std::size_t candidate,
                                                                  const Taken& taken,
                                                                  bool other) const {
  std::vector<std::pair<std::size_t, Taken>> ways;
  const auto& before = layers_[candidate];
  for (std::size_t g = 0; g < sizes_.size(); ++g) {
    if (taken[g] == 0) continue;
    Taken less = taken;
    --less[g];
    if (before.contains(less) && fits_(g, less[g], candidate))
      ways.emplace_back(g, std::move(less));
  }
  if (before.contains(taken)) ways.emplace_back(sizes_.size(), taken);
  return other ? ways.back() : ways.front();
}

std::vector<std::vector<std::size_t>> SlotMatcher::solution(bool other) const {
  std::vector<std::vector<std::size_t>> chosen;
  for (const std::size_t size : sizes_) chosen.emplace_back(size);
  Taken taken(sizes_.begin(), sizes_.end());
  for (std::size_t candidate = candidates_; candidate-- > 0;) {
    auto [group, before] = step_back(candidate, taken, other);
    if (group < sizes_.size()) chosen[group][before[group]] = candidate;
    taken = std::move(before);
  }
  return chosen;
}

}  // namespace unishard::converters::deepspeed
