#pragma once
// The numbers that decide what a step does, which the host must wait for.
#include "unishard/trainer/communicator.hpp"

#include "comm/tensor_collectives.hpp"
#include "engine/micro_batches.hpp"
#include "state/model_state.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace unishard::trainer::detail {

struct StepNumbers {
  std::vector<double> losses;  ///< of all ranks' micro-batches, in their order
  double gradient_norm = 0;    ///< of the scaled gradients
  std::uint32_t flags = 0;     ///< the union of those of all ranks
};

/// Waits for the device once, for both, and sends one message. `own_losses` come from
/// MicroBatches::end(), `squares` from gradient_squares(). Collective.
/// Throws: PeerFailed when a collective failed on the device.
StepNumbers gather_numbers(const ModelState& model, const MicroBatches& micro_batches,
                           const at::Tensor& own_losses, const at::Tensor& squares,
                           std::uint32_t own_flags, TensorCollectives& collectives,
                           Communicator& communicator);

/// Returns the elements of a one-dimensional float64 tensor of any device. Waits for the device.
std::vector<double> host_values(const at::Tensor& tensor);

}  // namespace unishard::trainer::detail
