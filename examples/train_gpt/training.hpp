#pragma once
// The training run: model, data, loop, saves.
#include "unishard/format/commit.hpp"
#include "unishard/trainer/communicator.hpp"

#include "options.hpp"

namespace train_gpt {

/// Called on each rank before each of its steps of a save: the how manyth save of this run (from
/// 1), and the step.
using SaveProbe = std::function<void(int save, unishard::CommitStep step)>;

/// Collective. Returns when all steps are done, or early after a save when any rank got SIGTERM or
/// SIGINT.
void train(const Options& options, const unishard::trainer::RankEnvironment& environment,
           unishard::trainer::Communicator& communicator, const SaveProbe& probe);

}  // namespace train_gpt
