#pragma once
// The parts of the table of keys, by section of the configuration.
#include "unishard/trainer/config_keys.hpp"

#include <span>

namespace unishard::trainer::detail {

std::span<const ConfigKey> run_keys();            ///< the top level: what a run computes
std::span<const ConfigKey> feature_keys();        ///< the top level: features that are not built
std::span<const ConfigKey> optimizer_keys();      ///< "optimizer"
std::span<const ConfigKey> scheduler_keys();      ///< "scheduler"
std::span<const ConfigKey> precision_keys();      ///< "fp16", "bf16", "data_types"
std::span<const ConfigKey> zero_keys();           ///< "zero_optimization"
std::span<const ConfigKey> offload_keys();        ///< its offload sections, "aio"
std::span<const ConfigKey> observation_keys();    ///< monitors, profilers, logs
std::span<const ConfigKey> recomputation_keys();  ///< "activation_checkpointing", "checkpoint"

inline constexpr std::string_view kTopLevel = "";
inline constexpr std::string_view kOptimizerParams = "optimizer.params";
inline constexpr std::string_view kSchedulerParams = "scheduler.params";
inline constexpr std::string_view kZero = "zero_optimization";
inline constexpr double kCountMost = 9007199254740992;  ///< 2^53: every smaller count is exact

}  // namespace unishard::trainer::detail
