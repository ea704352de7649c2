#include "unishard/trainer/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

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

/// Returns how far the rate of OneCycle is from its minimum to its maximum, 0 to 1.
double cycle_share(const OneCycle& cycle, std::int64_t n) {
  const auto first = static_cast<double>(cycle.first_step_size);
  const auto second = static_cast<double>(cycle.second_step_size);
  const double total = first + second;
  const double ratio = first / total;
  const auto iteration = static_cast<double>(n + 1);
  const double x = 1. + iteration / total - std::floor(1 + iteration / total);
  const bool rises = x <= ratio;
  const std::int64_t stairs = rises ? cycle.first_stair_count : cycle.second_stair_count;
  if (stairs <= 0) return rises ? x / ratio : (x - 1) / (ratio - 1);
  const auto count = static_cast<double>(stairs);
  const double in_cycle = std::fmod(iteration, total);
  const double stair =
      in_cycle <= first ? in_cycle * count / first : (total - in_cycle) * count / second;
  return std::floor(stair) / count;
}

/// Returns the decays that are over after the cycle; nullopt within the cycle.
std::optional<double> decays_after(const OneCycle& cycle, std::int64_t n) {
  const std::int64_t total = cycle.first_step_size + cycle.second_step_size;
  if (n < total) return std::nullopt;
  if (cycle.decay_step_size == 0) return 0;
  return static_cast<double>(n - total + 1) / static_cast<double>(cycle.decay_step_size);
}

double cycle_rate(const OneCycle& cycle, std::int64_t n) {
  if (n < 0) return cycle.min_lr;
  if (const auto decays = decays_after(cycle, n))
    return cycle.min_lr / (1 + cycle.decay_lr_rate * *decays);
  return cycle.min_lr + (cycle.max_lr - cycle.min_lr) * cycle_share(cycle, n);
}

double cycle_momentum(const OneCycle& cycle, std::int64_t n) {
  if (n < 0) return cycle.min_momentum;
  if (const auto decays = decays_after(cycle, n))
    return cycle.max_momentum * (1 + cycle.decay_momentum_rate * *decays);
  return cycle.max_momentum - (cycle.max_momentum - cycle.min_momentum) * cycle_share(cycle, n);
}

double range_test_rate(const LrRangeTest& test, std::int64_t n) {
  const double interval = static_cast<double>(n + 1) / static_cast<double>(test.step_size);
  return test.min_lr * (1 + test.step_rate * (test.staircase ? std::floor(interval) : interval));
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
    case ScheduleKind::OneCycle:
      return "OneCycle";
    case ScheduleKind::LRRangeTest:
      return "LRRangeTest";
  }
  return "?";
}

double learning_rate(const Schedule& schedule, std::int64_t last_iteration, double group_lr) {
  if (schedule.kind == ScheduleKind::Constant) return group_lr;
  if (schedule.kind == ScheduleKind::OneCycle)
    return cycle_rate(schedule.one_cycle, last_iteration);
  if (schedule.kind == ScheduleKind::LRRangeTest)
    return range_test_rate(schedule.range_test, last_iteration);
  if (schedule.kind == ScheduleKind::WarmupCosineLR)
    return group_lr * cosine_ratio(schedule, last_iteration);
  if (last_iteration < 0) return schedule.warmup_min_lr;
  const double highest = schedule.warmup_max_lr < 0 ? group_lr : schedule.warmup_max_lr;
  const double share = schedule.kind == ScheduleKind::WarmupLR
                           ? warmup_share(schedule, last_iteration)
                           : decay_share(schedule, last_iteration);
  return schedule.warmup_min_lr + (highest - schedule.warmup_min_lr) * share;
}

std::array<double, 2> scheduled_betas(const Schedule& schedule, std::int64_t last_iteration,
                                      std::array<double, 2> group_betas) {
  constexpr double kSecondOfOneCycle = 0.99;
  const OneCycle& cycle = schedule.one_cycle;
  if (schedule.kind != ScheduleKind::OneCycle || !cycle.cycle_momentum) return group_betas;
  return {cycle_momentum(cycle, last_iteration), kSecondOfOneCycle};
}

}  // namespace unishard::trainer
