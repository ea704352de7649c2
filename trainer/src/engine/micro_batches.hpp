#pragma once
// The forward and backward passes of a step on this rank.
#include "unishard/trainer/engine.hpp"

#include "state/gather_schedule.hpp"
#include "state/training_state.hpp"

#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace unishard::trainer::detail {

/// Not thread-safe. Lifetime: all that it is constructed with must outlive it.
class MicroBatches {
 public:
  using Pass = GatherSchedule::Pass;

  MicroBatches(TrainingState& state, StepContext& context, GatherSchedule& schedule,
               Communicator& communicator);

  /// Runs this rank's part of micro-batches 0 to count - 1: rank r takes r, r + W, ... Every rank
  /// runs the same number, because all take part in the collectives; surplus ones repeat
  /// micro-batch 0 and do not count. Returns the losses of all ranks' micro-batches, in their
  /// order. Collective. Throws: what `loss` or the backward pass throws; the gradients are then
  /// forgotten.
  std::vector<double> run(const LossFunction& loss, Pass pass, std::int64_t count);

 private:
  at::Tensor run_one(const LossFunction& loss, Pass pass, const MicroBatch& batch, double scale);
  std::vector<double> in_order(const std::vector<at::Tensor>& mine, std::int64_t count);

  TrainingState& state_;
  StepContext& context_;
  GatherSchedule& schedule_;
  Communicator& communicator_;
};

}  // namespace unishard::trainer::detail
