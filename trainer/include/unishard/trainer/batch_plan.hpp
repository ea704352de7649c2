#pragma once
// How a global batch is dealt to the ranks. Pure; any thread.
#include <cstdint>
#include <optional>

namespace unishard::trainer {

/// What the configuration says; nullopt where it says nothing or "auto".
struct BatchRequest {
  std::optional<std::int64_t> train;         ///< train_batch_size
  std::optional<std::int64_t> micro;         ///< train_micro_batch_size_per_gpu
  std::optional<std::int64_t> accumulation;  ///< gradient_accumulation_steps
};

/// Global micro-batch `id` of a step runs on rank id % W in micro-step id / W.
struct BatchPlan {
  std::int64_t train = 1;
  std::int64_t micro = 1;
  std::int64_t accumulation = 1;          ///< micro-steps of every rank
  std::int64_t global_micro_batches = 1;  ///< train / micro
  /// Micro-batches that run for the sake of the collectives and count as nothing.
  std::int64_t padding(std::uint32_t world_size) const {
    return accumulation * world_size - global_micro_batches;
  }
  bool operator==(const BatchPlan&) const = default;
};

/// DeepSpeed's rules, with one extension: where train and micro are given and accumulation is not,
/// train / micro need not be a multiple of the world size; the last micro-step is then padded.
/// Throws InvalidArgument.
BatchPlan plan_batch(const BatchRequest& request, std::uint32_t world_size);

}  // namespace unishard::trainer
