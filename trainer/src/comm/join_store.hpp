#pragma once
// The key-value store through which the ranks of a group find each other. Like Gloo's, its c10d
// types stay inside src/comm.
#include "unishard/trainer/communicator.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace unishard::trainer::detail {

/// Serves the store (rank 0, unless the launcher does) or connects to it, and makes sure that it
/// answers. Throws PeerFailed, with what to do about it, when it does not: a launcher's store
/// within 45 s, rank 0's within the group's timeout.
c10::intrusive_ptr<c10d::Store> join_store(const RankEnvironment& environment,
                                           const CommunicatorOptions& options);

}  // namespace unishard::trainer::detail
