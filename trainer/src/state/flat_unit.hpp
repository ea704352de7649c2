#pragma once
// The training state of one unit, which is gathered, reduced, updated and stored as a whole.
// clang-format off
//   stage 0    parameters and master hold everything on every rank
//   stage 1,2  parameters hold everything, master this rank's shard
//   stage 3    parameters have memory only between start_gather() and release(), frozen ones too
// clang-format on
// Below stage 3, frozen parameters are ordinary tensors, which no unit has.
#include "state/frozen_parameters.hpp"
#include "state/gathered_parameters.hpp"
#include "state/gradient_reducer.hpp"
#include "state/shard_store.hpp"
#include "state/unit_arrays.hpp"
#include "state/unit_layout.hpp"
#include "state/unit_link.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

struct UnitOptions {
  Reduction reduction = Reduction::FoldEach;
  std::size_t states = 0;   ///< of the optimizer
  bool persistent = false;  ///< stage 3: release() keeps the parameters
};

/// What FlatUnit::start_publish() shares.
enum class Changed {
  Master,      ///< after an update
  Everything,  ///< after a load, which changes frozen parameters too
};

/// Not thread-safe.
class FlatUnit {
 public:
  /// Takes over the values of the parameters, and moves the trained ones to the placement's device.
  /// Pre: `trained` require a gradient, `frozen` do not. Below stage 3 there are no `frozen`.
  FlatUnit(const std::vector<at::Tensor>& trained, std::vector<at::Tensor> frozen,
           const Placement& placement, std::shared_ptr<MemoryMeter> meter);
  FlatUnit(const FlatUnit&) = delete;
  FlatUnit& operator=(const FlatUnit&) = delete;

  /// The trained parameters and their layout.
  const std::vector<at::Tensor>& parameters() const { return gathered_->parameters(); }
  const UnitLayout& layout() const { return layout_; }
  const FrozenParameters& frozen() const { return *frozen_; }
  const Placement& placement() const { return layout_.placement; }
  const std::shared_ptr<MemoryMeter>& meter() const { return meter_; }
  /// Returns the number of elements that are gathered, padding included.
  std::int64_t elements() const { return layout_.padded + frozen_->elements(); }
  const std::string& name() const { return name_; }  ///< for messages, while attached

  /// Prepares training: hooks, gradients, and optimizer states of zeros. Below stage 3, parameters
  /// that were changed since the last detach() give the master its values. Collective if
  /// persistent. Pre: the unit is not attached. Lifetime: what `link` refers to must live until
  /// detach().
  void attach(const std::string& name, UnitLink link, const UnitOptions& options);
  /// Ends training: removes the hooks and frees what attach() allocated. The master stays.
  void detach();

  /// Gives the communication stream the gathering of the parameters. No effect below stage 3, or
  /// when they have memory. The only rank of a job may read its shard in place.
  void start_gather();
  /// Does the same into memory of its own, which may be written to.
  void start_gather_copy();
  /// Makes Compute wait until start_gather()'s values are there.
  void finish_gather();
  bool has_parameters() const {
    return (!is_trained() || gathered_->has_memory()) && frozen_->has_memory();
  }
  bool is_arriving() const { return arrival_ != nullptr; }
  /// Frees the parameters' memory once Compute has done what it was given. No effect below stage 3.
  void release();

  /// Counts a use whose backward pass will follow. The parameters are kept, and their gradients are
  /// not reduced, before the last use has ended.
  void begin_use() { ++uses_; }
  /// Says that the backward pass of one use is done. Those that do not end, because the unit's
  /// inputs have no gradient, are ended by finish_backward().
  void end_use();
  /// Counts a use whose activations are computed again before its backward pass, by another use.
  /// The gradients wait for it, the parameters do not.
  void begin_recomputed() { ++recomputed_; }
  void end_recomputed();

  /// See GradientReducer.
  void begin_step();
  void begin_backward(bool counts, bool is_last);
  void finish_backward();
  /// Forgets a micro-batch that an exception has ended: its gradients and gathered parameters.
  void abandon();

  /// Gives the communication stream the sharing of what has changed with the parameters of all
  /// ranks. No effect at stage 3, unless the unit is persistent.
  void start_publish(Changed changed);
  /// Makes Compute wait for start_publish().
  void finish_publish();

  /// Takes over values that the parameters were given on all ranks.
  /// Pre: has_parameters().
  void follow_parameters();

  /// The sum of the gradients, the fp32 weights and the optimizer states: one-dimensional, of what
  /// this rank holds of the trained parameters. Without any, only gradients() may be called; they
  /// have no elements.
  const StateArray& gradients() const { return reducer_ ? reducer_->gradients() : no_gradients_; }
  /// Returns the sums of the squares of gradients(); see square_sums().
  at::Tensor gradient_squares() const;
  /// Returns gradients(), or a copy of them, on the model's device. Pre: there are some.
  at::Tensor gradients_on_device() const;
  /// Replaces gradients() by `sums`, which gradients_on_device() has returned and the caller has
  /// changed by work of the compute stream.
  void replace_gradients(const at::Tensor& sums);
  /// Returns the elements of all ranks, padding included, on the model's device, of which `mine`
  /// are those that this rank holds. `verb` appears in traces and errors. Collective.
  at::Tensor gather_values(const std::string& verb, const at::Tensor& mine) const;
  const StateArray& master() const { return store_->master(); }
  const std::vector<StateArray>& states() const { return store_->states(); }
  const ShardStore& store() const { return *store_; }
  bool is_trained() const { return !layout_.flat.slots.empty(); }

  /// Returns what an update reads and writes. Pre: is_trained(), and the unit is attached.
  UnitArrays arrays() const;

  /// Returns this rank's part of the parameters, in their type in memory or, at stage 3, in their
  /// stored type; undefined where these are the master.
  StateArray resident_shard() const;
  /// Returns true when the ranks gather at stage 3 what this rank reads from a file.
  bool is_gathered_from_file() const { return placement().stage == 3 && shard().is_in_file(); }

  std::int64_t master_bytes() const;
  std::int64_t state_bytes() const;
  std::int64_t gradient_bytes() const;
  std::int64_t bytes_in_files() const;

 private:
  void gather_into(bool is_borrowing);
  bool can_borrow() const;
  void gather_on_stream(const char* verb, Changed changed);
  void gather_trained();
  void reduce_if_complete();
  void wait_for_arrival();
  at::Tensor shard_to_gather() const;
  const StateArray& shard() const;

  UnitLayout layout_;
  std::shared_ptr<MemoryMeter> meter_;
  std::optional<GatheredParameters> gathered_;
  std::optional<ShardStore> store_;
  std::optional<FrozenParameters> frozen_;
  StateArray no_gradients_;
  std::string name_;
  std::optional<UnitLink> link_;
  std::unique_ptr<GradientReducer> reducer_;
  bool persistent_ = false;
  EventPtr arrival_;             ///< of the parameters' values, until Compute has waited for it
  std::int64_t uses_ = 0;        ///< of this micro-batch, whose backward pass is not done
  std::int64_t recomputed_ = 0;  ///< the same of those that will be recomputed
};

}  // namespace unishard::trainer::detail
