#pragma once
// Chooses the device on which a run trains.
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/rank_environment.hpp"
#include "unishard/trainer/runtime.hpp"

#include "options.hpp"

#include <memory>

namespace train_gpt {

/// Returns the backend that a run on the device of --device uses.
/// Throws: InvalidArgument for NCCL on the CPU.
unishard::trainer::Backend backend_of(const Options& options);

/// Returns the runtime of --device: all ranks get the same kind of device. Ranks of one machine
/// take its CUDA devices in turn. Collective.
/// Throws: Unsupported on all ranks when one of them has no CUDA device and must have one.
std::unique_ptr<unishard::trainer::Runtime> make_runtime(
    const Options& options, const unishard::trainer::RankEnvironment& environment,
    unishard::trainer::Communicator& communicator, unishard::trainer::Trace* trace);

}  // namespace train_gpt
