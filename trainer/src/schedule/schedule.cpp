#include "unishard/trainer/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace unishard::trainer {
namespace {

/// Returns the completed part of the warm-up, 0 to 1. Pre: n >= 0.
double warmup_share(const Schedule& schedule, std::int64_t n) {
  const std::int64_t steps = std::max<std::int64_t>(2, schedule.warmup_num_steps);
  if (n >= steps) return 1;
  const auto done = static_cast<double>(n);
  const auto all = static_cast<double>(steps);
  return schedule.warmup_type == WarmupType::Log ? std::log(done + 1) / std::log(all) : done / all;
}

double decay_share(const Schedule& schedule, std::int64_t n) {
  const std::int64_t steps = std::max<std::int64_t>(2, schedule.warmup_num_steps);
  if (n < steps) return warmup_share(schedule, n);
  const auto left = static_cast<double>(schedule.total_num_steps - n);
  const auto span =
      static_cast<double>(std::max<std::int64_t>(1, schedule.total_num_steps - steps));
  return std::max(0.0, left / span);
}

double cosine_ratio(const Schedule& schedule, std::int64_t n) {
  const std::int64_t steps = std::max<std::int64_t>(2, schedule.warmup_num_steps);
  if (n < 0) return 0;
  if (n < steps) {
    return schedule.warmup_min_ratio + (1 - schedule.warmup_min_ratio) * warmup_share(schedule, n);
  }
  const auto span =
      static_cast<double>(std::max<std::int64_t>(1, schedule.total_num_steps - steps));
  const double progress = std::min(1.0, static_cast<double>(n - steps + 1) / span);
  const double wave = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return std::max(0.0, schedule.cos_min_ratio + (1 - schedule.cos_min_ratio) * wave);
}

}  // namespace

std::string_view name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::Constant:
      return "Constant";
    case ScheduleKind::WarmupLR:
      return "WarmupLR";
    case ScheduleKind::WarmupDecayLR:
      return "WarmupDecayLR";
    case ScheduleKind::WarmupCosineLR:
      return "WarmupCosineLR";
  }
  return "?";
}

double learning_rate(const Schedule& schedule, std::int64_t last_iteration, double group_lr) {
  if (schedule.kind == ScheduleKind::Constant) return group_lr;
  if (schedule.kind == ScheduleKind::WarmupCosineLR)
    return group_lr * cosine_ratio(schedule, last_iteration);
  if (last_iteration < 0) return schedule.warmup_min_lr;
  const double highest = schedule.warmup_max_lr < 0 ? group_lr : schedule.warmup_max_lr;
  const double share = schedule.kind == ScheduleKind::WarmupLR
                           ? warmup_share(schedule, last_iteration)
                           : decay_share(schedule, last_iteration);
  return schedule.warmup_min_lr + (highest - schedule.warmup_min_lr) * share;
}

}  // namespace unishard::trainer
