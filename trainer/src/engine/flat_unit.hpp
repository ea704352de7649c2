#pragma once
// The parameters of one unit as one flat tensor: what is gathered, reduced, updated and stored
// together.
//
// The parameters are views of `full`, installed once. At stage 3 only the memory behind `full`
// comes and goes: the storage's pointer is swapped, so views, tensors saved for backward and
// AccumulateGrad nodes stay valid.
//   stage 0    full and master hold everything on every rank
//   stage 1,2  full holds everything, master this rank's shard
//   stage 3    full has memory only between gather() and release()
// With fp32 compute below stage 3, master is `full`, or the rank's slice of it.
#include "unishard/format/partition.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/construction.hpp"

#include "engine/memory_meter.hpp"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// What becomes of a micro-batch's gradients.
enum class Reduction {
  FoldEach,  ///< added over the ranks at once, in micro-batch order
  FoldOnce,  ///< added up locally, over the ranks at the end of the step
};

class FlatUnit {
 public:
  /// Takes the parameters' values and memory over. All require a gradient.
  FlatUnit(std::vector<at::Tensor> parameters, const Placement& placement,
           std::shared_ptr<MemoryMeter> meter);
  FlatUnit(const FlatUnit&) = delete;
  FlatUnit& operator=(const FlatUnit&) = delete;

  bool empty() const { return parameters_.empty(); }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const FlatLayout& layout() const { return layout_; }
  const Placement& placement() const { return placement_; }
  const std::shared_ptr<MemoryMeter>& meter() const { return meter_; }

  /// Once, before training: gradient hooks, accumulators, `states` zeroed optimizer states.
  void attach(Communicator& communicator, Reduction reduction, std::size_t states);

  void gather();
  void release();  ///< no effect below stage 3

  // A step: begin_step(), then per micro-batch a backward and finish_backward(), then
  // finish_step().
  void begin_step();
  /// Whether the next backward's gradients count; they are zeros otherwise.
  void set_counts(bool counts) { counts_ = counts; }
  /// Reduces what the hooks have not: units with parameters that the loss did not use.
  void finish_backward();
  void finish_step();

  /// The sum of gradients as the optimizer needs it: everything at stage 0, else the shard. Valid
  /// after finish_step().
  std::span<const float> gradients() const;
  std::span<float> master() const;
  std::span<float> state(std::size_t index) const;
  /// Where parameter `index` lies in master(), states and gradients(): elements of the parameter
  /// that are held ...
  ElementRange held(std::size_t index) const;
  /// ... and the position of the first of them.
  std::size_t held_offset(std::size_t index) const;

  /// After master() has changed: makes the parameters follow.
  void publish();
  /// The compute-dtype values that gather() would give this rank's share, or all at stage 0. Not
  /// for fp32.
  at::Tensor rounded_master() const;
  /// The held elements of `full`; undefined at stage 3.
  at::Tensor resident_shard() const;

  std::int64_t master_bytes() const;
  std::int64_t state_bytes() const;
  std::int64_t gradient_bytes() const;

 private:
  using AccumulateNode =
      decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  void copy_initial_values();
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
  std::vector<AccumulateNode>
      nodes_;  ///< a tensor holds its node only weakly, and the hook dies with it
  std::size_t gradients_seen_ = 0;
  bool reduced_ = false;
  bool counts_ = true;
  bool gathered_ = true;
  bool aliased_ = false;  ///< master_ is memory of full_
};

}  // namespace unishard::trainer::detail
