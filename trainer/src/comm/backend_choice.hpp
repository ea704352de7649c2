#pragma once
// The ranks' common choice of a backend, before any group is made.
#include "unishard/trainer/communicator.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace unishard::trainer::detail {

/// Returns Gloo or Nccl, the same on every rank: NCCL when a rank asks for it, or when all ranks
/// leave the choice open and have a device. Blocks until all ranks have called it.
/// Throws: on every rank, Mismatch when some ranks ask for NCCL and others for Gloo, Unsupported
/// when a rank asks for NCCL and another has no device; and what call_roll() throws.
Backend choose_backend(c10d::Store& store, std::uint32_t rank, std::uint32_t world_size,
                       Backend wanted, bool has_device);

}  // namespace unishard::trainer::detail
