#pragma once
// The key-value store through which the ranks of a group find each other. Like Gloo's, its c10d
// types stay inside src/comm.
#include "unishard/trainer/communicator.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace unishard::trainer::detail {

/// Serves the store (on rank 0, unless the launcher serves it) or connects to it, and checks that
/// it answers.
/// Throws: PeerFailed, with a remedy, when it does not answer: after 45 s for a launcher's store,
/// after the group's timeout for rank 0's.
c10::intrusive_ptr<c10d::Store> join_store(const RankEnvironment& environment,
                                           const CommunicatorOptions& options);

}  // namespace unishard::trainer::detail
