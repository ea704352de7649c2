#pragma once
// Stage 0 of a run with experts: one optimizer file per expert rank, each with the states of all
// other parameters and of the rank's own experts.
#include "formats/deepspeed/expert_files.hpp"
#include "formats/deepspeed/stage0.hpp"

#include <cstdint>
#include <functional>
#include <memory>

namespace unishard::converters::deepspeed {

/// `model` has the whole module, with the experts of `experts`. States that cannot be named are
/// losses.
/// Throws: Corrupt when files are missing or not of one save.
Stage0Optimizer read_expert_stage0(const std::shared_ptr<FilePool>& pool, const TorchFile& file,
                                   const ModelFile& model, const ExpertFiles& experts,
                                   Notes& notes);

/// Returns a function that tells which expert rank has what is in a file: an expert is on the rank
/// that trains it.
std::function<std::uint32_t(const Path&)> expert_ranks_of_files(const ExpertFiles& experts);

}  // namespace unishard::converters::deepspeed
