#pragma once
// The update of tiles by the optimizer's rule.
#include "unishard/trainer/runtime.hpp"

#include "engine/tile_pipeline.hpp"
#include "optimizer/rules.hpp"
#include "optimizer/update_arrays.hpp"

#include <functional>

namespace unishard::trainer::detail {

/// The constants of the updates of one step. Lifetime: `state` and `runtime` outlive it.
struct TileUpdate {
  const TrainingState& state;
  Runtime& runtime;  ///< updates what is in a device's memory
  /// Updates what is in the host's memory.
  std::function<void(const Rule&, const UpdateArrays&)> on_host;
  float scale;  ///< of the gradients

  /// Updates weights and states where the weights are, and what is rounded from them if that is in
  /// memory.
  void operator()(const Tile& tile) const;

 private:
  void update_parameter(const ParameterRecord& parameter, const Tile& tile,
                        const at::Tensor& gradients) const;
};

}  // namespace unishard::trainer::detail
