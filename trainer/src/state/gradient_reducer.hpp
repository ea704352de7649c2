#pragma once
// Takes the gradients of a unit from its parameters, and adds them up over micro-batches and ranks
// on the communication stream.
#include "state/state_array.hpp"
#include "state/unit_layout.hpp"
#include "state/unit_link.hpp"

#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// When the gradients of a micro-batch are reduced.
enum class Reduction {
  FoldEach,  ///< added over the ranks at once, in micro-batch order
  FoldOnce,  ///< added up locally, and over the ranks in the last micro-batch of the step
};

/// A step is: begin_step(); for each micro-batch begin_backward(), backward passes,
/// finish_backward(). Several backward passes may add to a parameter's gradient, because parts of
/// the model that are recomputed have passes of their own. The unit knows when the last one is done
/// and calls reduce_if_complete() then. The result is ready when Compute has waited for all in
/// `link.gradients`. Not thread-safe.
class GradientReducer {
 public:
  struct Options {
    Reduction reduction = Reduction::FoldEach;
    const StatePlaces& places;               ///< the sums are where the optimizer's states are
    std::function<void(Sums)> on_sums = {};  ///< see UnitLink::on_sums
  };
  /// Installs hooks, which call `on_gradient` whenever a parameter's gradient has been added to.
  /// `name` is the unit's in messages.
  /// Lifetime: the destructor removes the hooks; a graph may outlive them.
  GradientReducer(std::string name, const UnitLayout& layout,
                  const std::vector<at::Tensor>& parameters, UnitLink link, const Options& options,
                  std::function<void()> on_gradient);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Forgets gradients that the parameters have from before, and begins with sums of zeros.
  void begin_step();
  /// `counts`: otherwise the gradients are taken as zeros. `is_last`: of the step's on this rank.
  void begin_backward(bool counts, bool is_last);
  /// Takes the gradients and reduces them if every parameter has one. No effect later in the
  /// micro-batch.
  /// Pre: no backward pass of this micro-batch will add to them.
  void reduce_if_complete();
  /// Does the same if the loss did not use all parameters, and with gradients that came against the
  /// precondition of reduce_if_complete(): their sum is right, and has other bits.
  void finish_backward();
  /// Forgets the gradients of a backward pass that an exception has ended.
  void abandon();

  /// Returns the sum of the gradients for the optimizer, float32: everything at stage 0, else the
  /// shard.
  const StateArray& gradients() const;
  /// Replaces gradients() by `sums`: themselves on the model's device, or the copy there, which the
  /// caller has changed by work of the compute stream.
  void replace(const at::Tensor& sums);
  /// Returns the sums of the squares of gradients(); see square_sums().
  at::Tensor squares() const;
  std::int64_t bytes() const;  ///< in memory

 private:
  using AccumulateNode =
      decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  void add_hook(const at::Tensor& parameter);
  void reduce();
  void sum_alone();
  std::vector<GradientPart> take_parts();
  at::Tensor take();
  void fold(const at::Tensor& flat);
  void add_to_sums(const at::Tensor& flat, const at::Tensor& on_device, bool is_last);
  void add_to_file(const at::Tensor& flat, bool is_last);
  at::Tensor sums_on_device() const;
  void bring(Stream stream, const at::Tensor& on_device) const;
  void take_back(Stream stream, const at::Tensor& on_device);
  void copy_back(Stream stream, const at::Tensor& on_device);
  at::Tensor squares_of(const at::Tensor& sums) const;
  /// Returns true when the sums are in a file, or in the host's memory for a device.
  bool is_away() const { return shard_.is_in_file() || shard_.is_pinned(); }

  std::string name_;
  const UnitLayout& layout_;
  std::vector<at::Tensor> parameters_;
  UnitLink link_;
  Reduction reduction_;
  StateArray shard_;  ///< float32, the running sum over ranks
  bool is_alone_;     ///< the only rank, on a device: gradients are added where they come
  std::function<void()> on_gradient_;
  std::function<void(Sums)> on_sums_;
  at::Tensor full_;    ///< float32: local sums (FoldOnce), and the result at stage 0
  StateArray result_;  ///< of stage 0: full_
  /// Since the step began. Used where the rank is alone and, by the communication stream, where
  /// shard_ is away from the device.
  bool has_sums_ = false;
  at::Tensor squares_;  ///< of the last sums, where shard_ is away from the device
  EventPtr copied_;     ///< the last copy to shard_, where that is pinned
  /// Keeps the nodes alive: a tensor holds its node only weakly, and the hook dies with it.
  std::vector<AccumulateNode> nodes_;
  std::shared_ptr<GradientReducer*> self_;  ///< for hooks, which an old graph may keep
  bool reduced_ = false;                    ///< in this micro-batch
  bool counts_ = true;
  bool is_last_ = false;
};

}  // namespace unishard::trainer::detail
