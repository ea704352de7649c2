#pragma once
// The collectives of the communication stream, on tensors of any device.
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/config.hpp"

#include <ATen/core/Tensor.h>

#include <memory>

namespace unishard::trainer::detail {

/// All functions but require_healthy() are collective and are called by work that a Runtime runs on
/// the communication stream. Tensors are contiguous.
/// Throws: as Communicator does.
class TensorCollectives {
 public:
  virtual ~TensorCollectives() = default;
  /// Copies the `in` of rank r to slice r of `out`.
  virtual void all_gather(const at::Tensor& out, const at::Tensor& in) = 0;
  /// Adds this rank's slices of every rank's `in` to the float32 `accumulator`, in the order of
  /// the Sum.
  virtual void reduce_scatter_fold(const at::Tensor& accumulator, const at::Tensor& in) = 0;
  /// Throws: PeerFailed, Io when an operation failed on the device after its function had returned.
  /// Results that the host has waited for are valid only if this does not throw.
  virtual void require_healthy() {}
};

/// Returns collectives on tensors of `device` that may be used at the same time as `communicator`.
/// Collective.
/// Lifetime: `communicator` must outlive the result.
std::unique_ptr<TensorCollectives> make_tensor_collectives(Communicator& communicator,
                                                           at::Device device, Sum sum);

}  // namespace unishard::trainer::detail
