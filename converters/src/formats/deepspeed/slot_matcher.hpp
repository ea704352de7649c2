#pragma once
// Finds the parameter of each numbered optimizer state when only orders and shapes are known.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

/// Assigns one candidate to each slot. Slots are numbered within groups, candidates are in the
/// model's order, and each group's slots take candidates in order. Candidates may be left over
/// (frozen parameters).
class SlotMatcher {
 public:
  /// fits(group, slot, candidate) returns true when the candidate may take the slot.
  using Fits = std::function<bool(std::size_t, std::size_t, std::size_t)>;
  SlotMatcher(std::vector<std::size_t> group_sizes, std::size_t candidates, Fits fits);

  enum class Outcome : std::uint8_t { None, One, Several };
  Outcome outcome() const { return outcome_; }
  /// Returns result[group][slot], a candidate. `other` returns a second solution when the outcome
  /// is Several.
  std::vector<std::vector<std::size_t>> solution(bool other = false) const;

 private:
  /// Number of slots taken in each group.
  using Taken = std::vector<std::uint32_t>;
  void advance(std::size_t candidate);
  /// Returns the group in which `candidate` takes a slot on a path to `taken`, and what was taken
  /// before. The number of groups means that it is left over.
  std::pair<std::size_t, Taken> step_back(std::size_t candidate, const Taken& taken,
                                          bool other) const;

  std::vector<std::size_t> sizes_;
  std::size_t candidates_, left_over_;
  Fits fits_;
  /// For each number of candidates seen: the reachable states and in how many ways (0 to 2) each is
  /// reached.
  std::vector<std::map<Taken, std::uint8_t>> layers_;
  Outcome outcome_ = Outcome::None;
};

}  // namespace unishard::converters::deepspeed
