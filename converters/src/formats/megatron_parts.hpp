#pragma once
// Classic checkpoints of Megatron-LM, `iter_0000100/mp_rank_00_000/model_optim_rng.pt`: a file for
// each tensor-parallel rank of each stage of a pipeline. The names of the tensors and the arguments
// of the run, which each file has, tell how they were cut. Measured with megatron-core 0.16.1.
#include "unishard/converters/source.hpp"

#include <memory>

namespace unishard::converters {

/// Returns whether open_megatron_parts() opens the folder, or says what is wrong with it.
bool has_megatron_parts(Storage& storage, const Path& folder);

/// Opens the ranks' folders in `folder`. Returns null where there are none, or where their files
/// hold no arguments of a run. States of the optimizer that cannot be named are a loss, with the
/// reason. Layers have the numbers that they have in the whole model.
/// Throws: Corrupt, naming it, when a rank's file is missing or the files contradict each other;
/// Unsupported for experts, virtual stages, tensors that are none of a GPT's, and versions
/// before 3.
std::unique_ptr<Source> open_megatron_parts(Storage& storage, const Path& folder);

}  // namespace unishard::converters
