#pragma once
// The forward and backward passes of a step, or of an evaluation, on this rank.
#include "unishard/trainer/engine.hpp"

#include "state/gather_schedule.hpp"
#include "state/generator_scope.hpp"
#include "state/training_state.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace unishard::trainer::detail {

/// begin(); while has_next(): forward() and, in training, backward(); end(), gather(). Rank r takes
/// micro-batches r, r + W, ... Every rank runs the same number, because all take part in the
/// collectives; surplus ones repeat micro-batch 0 and do not count.
/// Errors: after an exception of forward() or backward(), the step is forgotten; begin() starts it
/// anew.
/// Not thread-safe. Lifetime: all that it is constructed with must outlive it.
class MicroBatches {
 public:
  using Pass = GatherSchedule::Pass;

  MicroBatches(TrainingState& state, StepContext& context, GatherSchedule& schedule,
               Communicator& communicator);

  /// Begins with micro-batches 0 to count - 1.
  void begin(Pass pass, std::int64_t count);
  /// Returns true from begin() to end().
  bool has_begun() const { return count_ > 0; }
  bool has_next() const { return first_ < count_; }
  /// Throws: InvalidArgument unless a micro-batch was run and has had its backward pass. `what` is
  /// called by the program.
  void require_done(const char* what) const;
  /// Returns true when the next backward() is the last one.
  bool is_last() const { return first_ + communicator_.size() >= count_; }
  /// Pre: has_next().
  MicroBatch next() const;

  /// Calls `loss` with next(), and returns its result.
  /// Throws: what `loss` throws.
  at::Tensor forward(const LossFunction& loss);
  /// Adds the gradients of `loss`, divided by the number of micro-batches.
  /// Throws: what the backward pass throws.
  void backward(const at::Tensor& loss);

  /// Ends what begin() began. Returns this rank's losses as float64 on the runtime's device.
  at::Tensor end();
  /// Returns the losses of all ranks' micro-batches, in their order, from the values of end().
  /// Collective.
  std::vector<double> gather(std::span<const double> own) const;
  /// Does the same with the values of all ranks, in the order of the ranks.
  std::vector<double> in_order(std::span<const double> all) const;
  /// Forgets the step.
  void abandon();

 private:
  /// What is as the micro-batch demands from forward() to the end of backward().
  struct Current {
    Current(const StepContext& context, const MicroBatch& batch);
    GeneratorScope generator;
    DropoutScope dropout;
  };
  /// Calls `body`; when it throws, forgets the step.
  template <class Body>
  auto guarded(Body&& body);
  void acquire_root();
  void finish(const at::Tensor& loss);

  TrainingState& state_;
  StepContext& context_;
  GatherSchedule& schedule_;
  Communicator& communicator_;
  Pass pass_ = Pass::Train;
  std::int64_t count_ = 0;
  std::int64_t ended_ = 0;  ///< count_ of what end() ended
  std::int64_t first_ = 0;  ///< micro-batch of rank 0 in the next round
  std::optional<Current> current_;
  std::vector<at::Tensor> losses_;
};

}  // namespace unishard::trainer::detail
