#pragma once
// The update of tiles by the optimizer's rule.
#include "unishard/trainer/runtime.hpp"

#include "engine/tile_pipeline.hpp"
#include "optimizer/rules.hpp"
#include "optimizer/update_arrays.hpp"

#include <functional>
#include <span>
#include <vector>

namespace unishard::trainer::detail {

/// The constants of the updates of one step. Lifetime: what it refers to outlives it.
struct TileUpdate {
  const TrainingState& state;
  /// Returns the optimizer of a parameter.
  std::function<const Optimizer&(const ParameterRecord&)> optimizer;
  Runtime& runtime;  ///< updates what is in a device's memory
  /// Updates what is in the host's memory.
  std::function<void(const Rule&, const UpdateArrays&)> on_host;
  float scale;  ///< of the gradients
  /// Returns the hyperparameters of a parameter; see hyper_of_step().
  std::function<Hyper(const ParameterRecord&)> hyper;

  /// Updates weights and states where the weights are, and what is rounded from them if that is in
  /// memory.
  void operator()(const Tile& tile) const;
  /// Updates the weights and states of those parameters in `tile` that `which` returns true for,
  /// and nothing that is rounded from them.
  void update_some(const Tile& tile,
                   const std::function<bool(const ParameterRecord&)>& which) const;

 private:
  /// Adds the elements of a parameter that are in `tile`; to the last segment if they follow it and
  /// have its rule.
  void add_segment(const ParameterRecord& parameter, const Tile& tile,
                   std::vector<UpdateSegment>& segments) const;
  void update(std::span<const UpdateSegment> segments, const Tile& tile,
              const at::Tensor& rounded) const;
};

/// Gives what is rounded from the master, which is in memory, the rounding of `weights`: new ones,
/// from element `begin` on. A device gets them while the host goes on.
void round_weights(Runtime& runtime, const UnitArrays& arrays, std::int64_t begin,
                   const at::Tensor& weights);

/// Returns the update of a step by the rules of the state's optimizers.
TileUpdate update_of_step(const TrainingState& state, Runtime& runtime, float scale);

/// Returns the elements of a parameter that are in `tile`, as a range of the unit's arrays.
ElementRange range_in(const Tile& tile, const ParameterRecord& parameter);
/// Returns these elements of one of the tile's tensors.
at::Tensor part_of(const at::Tensor& tensor, const Tile& tile, ElementRange range);

}  // namespace unishard::trainer::detail
