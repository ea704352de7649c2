#pragma once
// The training run: model, data, loop, saves.
#include "unishard/format/commit.hpp"
#include "unishard/trainer/communicator.hpp"

#include "options.hpp"

namespace train_gpt {

/// Called on each rank before each of its steps of a save, with the number of the save in this run
/// (from 1) and the step.
using SaveProbe = std::function<void(int save, unishard::CommitStep step)>;

/// Runs the training. Returns when all steps are done, or after a save when any rank got SIGTERM or
/// SIGINT. Collective.
void train(const Options& options, const unishard::trainer::RankEnvironment& environment,
           unishard::trainer::Communicator& communicator, const SaveProbe& probe);

}  // namespace train_gpt
