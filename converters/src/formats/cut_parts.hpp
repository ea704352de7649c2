#pragma once
// Models that tensor parallelism cut into one torch.save file for each rank. Of Meta's
// `consolidated.00.pth` and Megatron-LM's `mp_rank_00/model_optim_rng.pt`, names of tensors and
// what the programs write beside them tell how they make whole ones; of others, the user's rules
// do.
#include "unishard/converters/source.hpp"

#include "formats/deepspeed/rank_join.hpp"

#include <memory>
#include <optional>
#include <string>

namespace unishard::converters {

/// Returns whether open_cut_parts() opens `folder` without rules, or says what is wrong with it.
bool has_named_parts(Storage& storage, const Path& folder);

/// Opens the parts that `merge_rules` would put together where names of tensors do not tell enough.
/// Returns nullopt where there are none.
std::optional<deepspeed::CutParts> open_silent_parts(Storage& storage, const Path& folder,
                                                     const std::optional<std::string>& tag);

/// Opens the parts in `folder`, or in the iteration that latest_checkpointed_iteration.txt in it or
/// `options.tag` names. Returns null where there are no such parts, or where nothing tells how they
/// make whole tensors. Rules in `options` count before what the names tell. Reads the model,
/// and the states of Megatron-LM's optimizer where they have names; others are a loss.
/// Throws: Corrupt when a part is missing or the parts contradict each other; InvalidArgument when
/// the rules do not fit, or a run has several iterations and no file that names the newest, which
/// the hint then lists; Unsupported for what is not put together.
std::unique_ptr<Source> open_cut_parts(Storage& storage, const Path& folder,
                                       const OpenOptions& options);

}  // namespace unishard::converters
