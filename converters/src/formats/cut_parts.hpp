#pragma once
// Models that tensor parallelism cut into one torch.save file for each rank: Meta's
// `consolidated.00.pth`, Megatron-LM's `mp_rank_00/model_optim_rng.pt`. Nothing in the files says
// how they make whole tensors; the rules of the user's do.
#include "unishard/converters/source.hpp"

#include <memory>

namespace unishard::converters {

/// Opens the parts in `folder`, or in the iteration that latest_checkpointed_iteration.txt in it or
/// `options.tag` names. Returns null where there are no such parts. Reads the model; the states of
/// the optimizer are a loss.
/// Pre: options.merge_rules are given.
/// Throws: Corrupt when a part is missing or the parts contradict each other; InvalidArgument when
/// the rules do not fit; Unsupported for parts of pipeline stages.
std::unique_ptr<Source> open_cut_parts(Storage& storage, const Path& folder,
                                       const OpenOptions& options);

}  // namespace unishard::converters
