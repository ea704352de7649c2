#pragma once
// The parameters of one unit as one flat tensor, which is gathered, reduced, updated and stored as
// a whole.
//
// The parameters are views of `full`. At stage 3 only the memory behind `full` is allocated and
// freed: the pointer of its storage is swapped, so views, tensors saved for backward and
// AccumulateGrad nodes stay valid.
// clang-format off
//   stage 0    full and master hold everything on every rank
//   stage 1,2  full holds everything, master this rank's shard
//   stage 3    full has memory only between gather() and release()
// clang-format on
// With fp32 compute below stage 3, master is `full`, or the rank's slice of it.
#include "unishard/format/partition.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/construction.hpp"

#include "state/memory_meter.hpp"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// When the gradients of a micro-batch are reduced.
enum class Reduction {
  FoldEach,  ///< added over the ranks at once, in micro-batch order
  FoldOnce,  ///< added up locally, and over the ranks at the end of the step
};

/// Not thread-safe.
class FlatUnit {
 public:
  /// Takes over the values and memory of the parameters.
  /// Pre: all parameters require a gradient.
  FlatUnit(std::vector<at::Tensor> parameters, const Placement& placement,
           std::shared_ptr<MemoryMeter> meter);
  FlatUnit(const FlatUnit&) = delete;
  FlatUnit& operator=(const FlatUnit&) = delete;

  bool empty() const { return parameters_.empty(); }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const FlatLayout& layout() const { return layout_; }
  const Placement& placement() const { return placement_; }
  const std::shared_ptr<MemoryMeter>& meter() const { return meter_; }

  /// Prepares training: installs gradient hooks and allocates accumulators and `states` zeroed
  /// optimizer states. `name` is the unit's in messages. Below stage 3, parameters that were
  /// changed since the last detach() give the master its values. Pre: the unit is not attached.
  /// Lifetime: `communicator` must live until detach().
  void attach(std::string name, Communicator& communicator, Reduction reduction,
              std::size_t states);
  /// Ends training: removes the hooks and frees what attach() allocated. The master stays.
  void detach();

  void gather();
  /// Frees what gather() allocated. No effect below stage 3.
  void release();

  /// Counts a forward pass whose backward pass will follow.
  void begin_use() { ++uses_; }
  /// Says that the backward pass of one use is done. After the last one the unit is released, also
  /// when parameters that the loss did not use have got no gradient.
  void end_use();

  // A step is: begin_step(); for each micro-batch a backward pass and finish_backward();
  // finish_step().
  void begin_step();
  /// Sets whether the gradients of the next backward pass count; otherwise they are zeros.
  void set_counts(bool counts) { counts_ = counts; }
  /// Reduces units that the hooks have not reduced because the loss did not use all parameters.
  void finish_backward();
  void finish_step();
  /// Forgets a micro-batch that an exception has ended: its gradients and gathered parameters.
  void abandon();

  /// Returns the sum of gradients for the optimizer: everything at stage 0, else the shard.
  /// Pre: finish_step() has returned.
  std::span<const float> gradients() const;
  std::span<float> master() const;
  std::span<float> state(std::size_t index) const;
  /// Returns the elements of parameter `index` that are held in master(), states and gradients().
  ElementRange held(std::size_t index) const;
  /// Returns the position of the first of these elements in master(), states and gradients().
  std::size_t held_offset(std::size_t index) const;

  /// Copies a changed master() to the parameters.
  void publish();
  /// Returns, in the compute dtype, the values that publish() gives this rank's part, or all at
  /// stage 0.
  /// Pre: the compute dtype is not fp32.
  at::Tensor rounded_master() const;
  /// Returns the held elements of `full`; undefined at stage 3.
  at::Tensor resident_shard() const;

  std::int64_t master_bytes() const;
  std::int64_t state_bytes() const;
  std::int64_t gradient_bytes() const;

 private:
  using AccumulateNode =
      decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  void copy_initial_values();
  void follow_parameters();
  void add_hook(const at::Tensor& parameter);
  void on_gradient();
  void reduce();
  at::Tensor take_gradients();
  void fold(const at::Tensor& flat);
  void allocate_full();
  void free_full();

  Placement placement_;
  std::vector<at::Tensor> parameters_;
  FlatLayout layout_;
  std::int64_t shard_ = 0;   ///< elements of a shard
  std::int64_t padded_ = 0;  ///< shard_ * world size
  std::shared_ptr<MemoryMeter> meter_;
  at::Tensor full_;    ///< [padded_], compute dtype
  at::Tensor master_;  ///< fp32
  std::vector<at::Tensor> states_;
  at::Tensor shard_gradient_;  ///< fp32 [shard_], the running fold
  at::Tensor full_gradient_;   ///< fp32 [padded_]: local sums (FoldOnce), and the result at stage 0
  Communicator* communicator_ = nullptr;
  Reduction reduction_ = Reduction::FoldEach;
  /// Keeps the nodes alive: a tensor holds its node only weakly, and the hook dies with it.
  std::vector<AccumulateNode> nodes_;
  std::shared_ptr<FlatUnit*> self_;  ///< for hooks, which an old graph may keep after detach()
  std::string name_;                 ///< for messages
  std::int64_t uses_ = 0;  ///< forward passes of this micro-batch whose backward pass is not done
  std::size_t gradients_seen_ = 0;
  bool reduced_ = false;
  bool counts_ = true;
  bool gathered_ = true;
  bool aliased_ = false;  ///< master_ is memory of full_
};

}  // namespace unishard::trainer::detail
