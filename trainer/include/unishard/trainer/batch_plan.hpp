#pragma once
// Distribution of a global batch over the ranks.
// Thread safety: values and pure functions.
#include <cstdint>
#include <optional>

namespace unishard::trainer {

/// The batch sizes in the configuration; nullopt when a key is missing or "auto".
struct BatchRequest {
  std::optional<std::int64_t> train;         ///< train_batch_size
  std::optional<std::int64_t> micro;         ///< train_micro_batch_size_per_gpu
  std::optional<std::int64_t> accumulation;  ///< gradient_accumulation_steps
};

/// The plan of a step: global micro-batch `id` runs on rank id % W in micro-step id / W. All counts
/// are per step.
struct BatchPlan {
  std::int64_t train = 1;                 ///< samples of the global batch
  std::int64_t micro = 1;                 ///< samples of a micro-batch
  std::int64_t accumulation = 1;          ///< micro-steps of every rank
  std::int64_t global_micro_batches = 1;  ///< train / micro
  /// Returns the number of micro-batches that run only because all ranks take part in the
  /// collectives. They do not count.
  std::int64_t padding(std::uint32_t world_size) const {
    return accumulation * world_size - global_micro_batches;
  }
  bool operator==(const BatchPlan&) const = default;
};

/// Throws: InvalidArgument when no number of ranks can have these sizes.
void require_possible_batch(const BatchRequest& request);

/// Applies DeepSpeed's rules, with one extension: when train and micro are given and accumulation
/// is not, train / micro need not be a multiple of the world size; the last micro-step is then
/// padded.
/// Throws: InvalidArgument when the sizes contradict each other.
BatchPlan plan_batch(const BatchRequest& request, std::uint32_t world_size);

}  // namespace unishard::trainer
