#include "unishard/format/error.hpp"

#include "config/key_table.hpp"
#include "config/section_readers.hpp"

#include <fmt/format.h>

#include <array>

namespace unishard::trainer::detail {
namespace {

constexpr std::array<std::pair<std::string_view, ScheduleKind>, 6> kKinds{
    {{"Constant", ScheduleKind::Constant},
     {"WarmupLR", ScheduleKind::WarmupLR},
     {"WarmupDecayLR", ScheduleKind::WarmupDecayLR},
     {"WarmupCosineLR", ScheduleKind::WarmupCosineLR},
     {"OneCycle", ScheduleKind::OneCycle},
     {"LRRangeTest", ScheduleKind::LRRangeTest}}};

std::string schedule_path(std::string_view name) {
  return fmt::format("scheduler.params.{}", name);
}

/// Throws: InvalidArgument when a parameter that the schedule needs is not given.
void require_given(const CheckedConfig& from, std::string_view name) {
  if (from.find(schedule_path(name))) return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("configuration: scheduler.params.{} is missing", name),
        fmt::format("{} needs it", from.text("scheduler.type")));
}

void read_warmup(const CheckedConfig& from, Schedule& schedule) {
  schedule.warmup_min_lr = from.number(schedule_path("warmup_min_lr"));
  const double highest = schedule.kind == ScheduleKind::WarmupDecayLR ? 0.001 : -1;
  schedule.warmup_max_lr = from.given_number(schedule_path("warmup_max_lr")).value_or(highest);
  schedule.warmup_num_steps = from.integer(schedule_path("warmup_num_steps"));
  const bool is_linear = from.text(schedule_path("warmup_type")) == "linear";
  schedule.warmup_type = is_linear ? WarmupType::Linear : WarmupType::Log;
  schedule.warmup_min_ratio = from.number(schedule_path("warmup_min_ratio"));
  schedule.cos_min_ratio = from.number(schedule_path("cos_min_ratio"));
  if (schedule.kind == ScheduleKind::WarmupLR) return;
  require_given(from, "total_num_steps");
  schedule.total_num_steps = from.integer(schedule_path("total_num_steps"));
}

void read_one_cycle(const CheckedConfig& from, OneCycle& cycle) {
  require_given(from, "cycle_min_lr");
  require_given(from, "cycle_max_lr");
  cycle.min_lr = from.number(schedule_path("cycle_min_lr"));
  cycle.max_lr = from.number(schedule_path("cycle_max_lr"));
  cycle.decay_lr_rate = from.number(schedule_path("decay_lr_rate"));
  cycle.first_step_size = from.integer(schedule_path("cycle_first_step_size"));
  cycle.second_step_size =
      from.given_integer(schedule_path("cycle_second_step_size")).value_or(cycle.first_step_size);
  cycle.first_stair_count = from.integer(schedule_path("cycle_first_stair_count"));
  cycle.second_stair_count = from.given_integer(schedule_path("cycle_second_stair_count"))
                                 .value_or(cycle.first_stair_count);
  cycle.decay_step_size = from.integer(schedule_path("decay_step_size"));
  cycle.cycle_momentum = from.boolean(schedule_path("cycle_momentum"));
  cycle.min_momentum = from.number(schedule_path("cycle_min_mom"));
  cycle.max_momentum = from.number(schedule_path("cycle_max_mom"));
  cycle.decay_momentum_rate = from.number(schedule_path("decay_mom_rate"));
}

/// Throws: InvalidArgument for a momentum of 1, with which an average never moves.
void check_cycled_momentum(const CheckedConfig& from, Config& config) {
  const OptimizerKind kind = optimizer_kind(config.optimizer);
  const bool has_betas =
      kind == OptimizerKind::Adam || kind == OptimizerKind::Lion || kind == OptimizerKind::Lamb;
  for (const char* name : {"cycle_min_mom", "cycle_max_mom"})
    if (from.number(schedule_path(name)) >= 1) from.refuse(schedule_path(name), "less than 1");
  for (const char* name : {"cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}) {
    if (!has_betas && from.find(schedule_path(name))) {
      config.notes.push_back(fmt::format("{}: has no effect on {}, as in DeepSpeed",
                                         schedule_path(name), config.optimizer));
    }
  }
}

void read_range_test(const CheckedConfig& from, LrRangeTest& test) {
  test.min_lr = from.number(schedule_path("lr_range_test_min_lr"));
  test.step_size = from.integer(schedule_path("lr_range_test_step_size"));
  test.step_rate = from.number(schedule_path("lr_range_test_step_rate"));
  test.staircase = from.boolean(schedule_path("lr_range_test_staircase"));
}

}  // namespace

void read_schedule(const CheckedConfig& from, Config& config) {
  const std::string type = from.text("scheduler.type");
  Schedule& schedule = config.schedule;
  for (const auto& [name, kind] : kKinds)
    if (name == type) schedule.kind = kind;
  switch (schedule.kind) {
    case ScheduleKind::Constant:
      break;
    case ScheduleKind::WarmupLR:
    case ScheduleKind::WarmupDecayLR:
    case ScheduleKind::WarmupCosineLR:
      read_warmup(from, schedule);
      break;
    case ScheduleKind::OneCycle:
      read_one_cycle(from, schedule.one_cycle);
      check_cycled_momentum(from, config);
      break;
    case ScheduleKind::LRRangeTest:
      read_range_test(from, schedule.range_test);
      break;
  }
  note_unused(from, kSchedulerParams, type, "schedule", config.notes);
}

}  // namespace unishard::trainer::detail
