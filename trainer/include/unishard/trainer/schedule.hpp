#pragma once
// Learning rates as functions of the step, with DeepSpeed's formulas.
// Thread safety: values and pure functions.
#include <cstdint>
#include <string_view>

namespace unishard::trainer {

enum class ScheduleKind : std::uint8_t { Constant, WarmupLR, WarmupDecayLR, WarmupCosineLR };
enum class WarmupType : std::uint8_t { Log, Linear };

struct Schedule {
  ScheduleKind kind = ScheduleKind::Constant;
  double warmup_min_lr = 0;
  double warmup_max_lr = -1;  ///< negative: the group's own rate
  std::int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::Log;
  std::int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;  ///< WarmupCosineLR only
  double cos_min_ratio = 1e-4;  ///< WarmupCosineLR only
  bool operator==(const Schedule&) const = default;
};

std::string_view name_of(ScheduleKind kind);

/// Returns the rate after `last_iteration` + 1 scheduler steps. As in DeepSpeed, `last_iteration`
/// is -1 before the first optimizer step: optimizer step number s + 1 uses last_iteration = s - 1.
double learning_rate(const Schedule& schedule, std::int64_t last_iteration, double group_lr);

}  // namespace unishard::trainer
