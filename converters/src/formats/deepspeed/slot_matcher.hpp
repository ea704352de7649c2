#pragma once
// Which parameter each numbered optimizer state belongs to, when only orders and shapes are known.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

/// Groups of numbered slots, and candidates in the model's order. A slot takes one candidate, each
/// group's slots take them in order; candidates may be left over (frozen parameters).
class SlotMatcher {
 public:
  /// fits(group, slot, candidate)
  using Fits = std::function<bool(std::size_t, std::size_t, std::size_t)>;
  SlotMatcher(std::vector<std::size_t> group_sizes, std::size_t candidates, Fits fits);

  enum class Outcome : std::uint8_t { None, One, Several };
  Outcome outcome() const { return outcome_; }
  /// result[group][slot] is a candidate. One of the solutions; for Several, `other` gives another.
  std::vector<std::vector<std::size_t>> solution(bool other = false) const;

 private:
  /// How many slots of each group are taken.
  using Taken = std::vector<std::uint32_t>;
  void advance(std::size_t candidate);
  /// The group that gave `candidate` its slot on a way to `taken`, and what was taken before; group
  /// = number of groups: it was left over.
  std::pair<std::size_t, Taken> step_back(std::size_t candidate, const Taken& taken,
                                          bool other) const;

  std::vector<std::size_t> sizes_;
  std::size_t candidates_, left_over_;
  Fits fits_;
  /// Per number of candidates seen: what can be taken then, and in how many ways (0 to 2).
  std::vector<std::map<Taken, std::uint8_t>> layers_;
  Outcome outcome_ = Outcome::None;
};

}  // namespace unishard::converters::deepspeed
