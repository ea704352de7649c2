#pragma once
// Learning rates as functions of the step, with DeepSpeed's formulas.
// Thread safety: values and pure functions.
#include <array>
#include <cstdint>
#include <string_view>

namespace unishard::trainer {

enum class ScheduleKind : std::uint8_t {
  Constant,
  WarmupLR,
  WarmupDecayLR,
  WarmupCosineLR,
  OneCycle,
  LRRangeTest,
};
enum class WarmupType : std::uint8_t { Log, Linear };

/// The keys of OneCycle: the rate rises and falls once, then decays; the momentum does the
/// opposite.
struct OneCycle {
  double min_lr = 0;
  double max_lr = 0;
  double decay_lr_rate = 0;
  std::int64_t first_step_size = 2000;
  std::int64_t second_step_size = 2000;
  std::int64_t first_stair_count = 0;  ///< 0: no stairs
  std::int64_t second_stair_count = 0;
  std::int64_t decay_step_size = 0;  ///< 0: no decay after the cycle
  bool cycle_momentum = true;
  double min_momentum = 0.8;
  double max_momentum = 0.9;
  double decay_momentum_rate = 0;
  bool operator==(const OneCycle&) const = default;
};

/// The keys of LRRangeTest: the rate grows without an end.
struct LrRangeTest {
  double min_lr = 1e-3;
  std::int64_t step_size = 2000;
  double step_rate = 1;
  bool staircase = false;
  bool operator==(const LrRangeTest&) const = default;
};

struct Schedule {
  ScheduleKind kind = ScheduleKind::Constant;
  double warmup_min_lr = 0;
  double warmup_max_lr = -1;  ///< negative: the group's own rate
  std::int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::Log;
  std::int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;  ///< WarmupCosineLR only
  double cos_min_ratio = 1e-4;  ///< WarmupCosineLR only
  OneCycle one_cycle = {};
  LrRangeTest range_test = {};
  bool operator==(const Schedule&) const = default;
};

std::string_view name_of(ScheduleKind kind);

/// Returns the rate after `last_iteration` + 1 scheduler steps. As in DeepSpeed, `last_iteration`
/// is -1 before the first optimizer step: optimizer step number s + 1 uses last_iteration = s - 1.
double learning_rate(const Schedule& schedule, std::int64_t last_iteration, double group_lr);

/// Returns the betas at the same step. Only OneCycle changes them.
std::array<double, 2> scheduled_betas(const Schedule& schedule, std::int64_t last_iteration,
                                      std::array<double, 2> group_betas);

}  // namespace unishard::trainer
