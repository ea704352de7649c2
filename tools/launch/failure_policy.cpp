#include "launch/failure_policy.hpp"

#include <csignal>

namespace unishard::tools {
namespace {

/// How long a rank with the reason may take to end after the first, until the others are stopped.
constexpr std::chrono::milliseconds kReasonTime{300};

/// A rank that fails because another one does ends with status 3, and sometimes before it.
bool may_be_a_consequence(const RankFailure& outcome) {
  return outcome.lost.empty() && outcome.signal == 0 && outcome.exit_code == 3;
}

}  // namespace

void FailurePolicy::note(const RankFailure& outcome, Clock::time_point now) {
  if (outcome.lost.empty() && outcome.rank == 0 && outcome.signal == 0)
    first_rank_exit_ = outcome.exit_code;
  if (outcome.status() == 0) return;
  const bool may_follow = may_be_a_consequence(outcome);
  if (!failure_) {
    failure_ = outcome;
    stop_at_ = may_follow ? now + kReasonTime : now;
  } else if (stop_at_ && may_be_a_consequence(*failure_) && !may_follow) {
    failure_ = outcome;
  }
}

void FailurePolicy::kill_after_grace(Clock::time_point now) {
  stop_at_.reset();
  if (kill_at_) return;
  kill_at_ = now + std::chrono::duration_cast<Clock::duration>(
                       std::chrono::duration<double>(grace_seconds_));
}

std::optional<int> FailurePolicy::due(Clock::time_point now) {
  if (stop_at_ && now >= *stop_at_) {
    kill_after_grace(now);
    return SIGTERM;
  }
  if (kill_at_ && now >= *kill_at_) {
    kill_at_.reset();
    return SIGKILL;
  }
  return std::nullopt;
}

std::optional<RankFailure> FailurePolicy::failure() const {
  std::optional<RankFailure> found = failure_;
  if (found) found->first_rank_exit = first_rank_exit_;
  return found;
}

}  // namespace unishard::tools
