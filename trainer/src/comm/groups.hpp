#pragma once
// The groups that make_communicator() builds from one store.
#include "unishard/trainer/communicator.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

namespace unishard::trainer::detail {

/// Does the same as make_communicator() with Gloo, on a store that all ranks have joined.
/// Pre: no other group uses `store`.
std::unique_ptr<Communicator> make_gloo_communicator(const RankEnvironment& environment,
                                                     const CommunicatorOptions& options,
                                                     c10::intrusive_ptr<c10d::Store> store);

/// Returns a group whose device tensors go over NCCL and whose host memory goes over `host`.
std::unique_ptr<Communicator> make_nccl_group(const RankEnvironment& environment,
                                              const CommunicatorOptions& options,
                                              std::unique_ptr<Communicator> host);

/// Does the same on the thread's current device, whose type may be another than CUDA when its
/// streams have handles that NCCL's functions understand. Builds without NCCL lack it.
/// Pre: has_cuda_streams().
std::unique_ptr<Communicator> join_nccl_group(std::uint32_t timeout_seconds,
                                              std::unique_ptr<Communicator> host);

}  // namespace unishard::trainer::detail
