#pragma once
// The collectives of the communication stream, on tensors of any device.
#include "unishard/trainer/communicator.hpp"

#include <ATen/core/Tensor.h>

#include <memory>

namespace unishard::trainer::detail {

/// All functions are collective and are called by work that a Runtime runs on the communication
/// stream. Tensors are contiguous.
/// Throws: as Communicator does.
class TensorCollectives {
 public:
  virtual ~TensorCollectives() = default;
  /// Copies the `in` of rank r to slice r of `out`.
  virtual void all_gather(const at::Tensor& out, const at::Tensor& in) = 0;
  /// Adds this rank's slices of every rank's `in` to the float32 `accumulator`, rank 0's first.
  virtual void reduce_scatter_fold(const at::Tensor& accumulator, const at::Tensor& in) = 0;
};

/// Returns collectives over the ranks of `communicator` that may be used at the same time as it.
/// Collective.
/// Lifetime: `communicator` must outlive the result.
std::unique_ptr<TensorCollectives> make_tensor_collectives(Communicator& communicator);

}  // namespace unishard::trainer::detail
