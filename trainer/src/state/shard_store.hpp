#pragma once
// The fp32 master weights and the optimizer states of a unit: what this rank holds of them.
#include "state/gathered_parameters.hpp"

#include <cstddef>
#include <vector>

namespace unishard::trainer::detail {

/// Not thread-safe.
class ShardStore {
 public:
  /// Takes the master from `initial`, the parameters as they were before GatheredParameters rounded
  /// them. With fp32 below stage 3, the master is a part of the flat tensor.
  ShardStore(const UnitLayout& layout, const std::vector<at::Tensor>& initial,
             const at::Tensor& flat);

  /// Makes `count` optimizer states of zeros, or removes them.
  void make_states(std::size_t count);
  /// Takes over values that the parameters were given. Where a 16-bit parameter is still the
  /// rounding of its master, the master keeps its bits. `held` is this rank's part of the flat
  /// tensor.
  void follow(const at::Tensor& held);

  const at::Tensor& master() const { return master_; }
  const at::Tensor& state(std::size_t index) const { return states_[index]; }
  const std::vector<at::Tensor>& states() const { return states_; }
  bool master_is_parameters() const { return aliased_; }

 private:
  at::Tensor master_;
  std::vector<at::Tensor> states_;
  at::ScalarType stored_;  ///< what the parameters are rounded to
  bool aliased_ = false;
};

}  // namespace unishard::trainer::detail
