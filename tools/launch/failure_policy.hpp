#pragma once
// Decides what becomes of a job when a rank fails: which failure counts, and when the other ranks
// are stopped. Not thread-safe.
#include "launch/rank_failure.hpp"

#include <chrono>
#include <optional>

namespace unishard::tools {

class FailurePolicy {
 public:
  using Clock = std::chrono::steady_clock;

  /// `grace_seconds` is the time from SIGTERM to SIGKILL.
  explicit FailurePolicy(double grace_seconds) : grace_seconds_(grace_seconds) {}

  /// Takes note of a rank that ended, in whatever way, or of a host that was lost.
  void note(const RankFailure& outcome, Clock::time_point now);
  /// Says that the job has been told twice to stop: what still runs after the grace is killed.
  void kill_after_grace(Clock::time_point now);
  /// Returns the signal that all running ranks must get now, once each: SIGTERM and later SIGKILL.
  std::optional<int> due(Clock::time_point now);
  /// Returns when due() has something next.
  std::optional<Clock::time_point> next() const { return stop_at_ ? stop_at_ : kill_at_; }
  /// Returns the failure that counts; nullopt while all has gone well.
  std::optional<RankFailure> failure() const;

 private:
  double grace_seconds_;
  std::optional<RankFailure> failure_;
  std::optional<int> first_rank_exit_;
  std::optional<Clock::time_point> stop_at_, kill_at_;
};

}  // namespace unishard::tools
