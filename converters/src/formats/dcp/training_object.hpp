#pragma once
// A training state as one object: {"model": ..., "optimizer": ..., "epoch": 3}, a whole run's state
// under names of its own. It becomes the entries that a DCP folder of the same state has.
#include "containers/torch_file.hpp"
#include "formats/dcp/state_dict.hpp"

#include <cstdint>

namespace unishard::converters::dcp {

/// Returns true for an optimizer's state_dict(): a dict with "state" and "param_groups".
bool is_optimizer(torch::Value value);
/// Returns true for an optimizer's state_dict(), and for what has one below it.
bool has_optimizer(torch::Value root);
/// Returns true for a dict that has_optimizer(), and for one with a model below one of the usual
/// names ("model", "module", "state_dict", "model_state_dict").
bool is_training_object(torch::Value root);
/// Adds the members of a file's object, which `rank` wrote; those above an optimizer or above one
/// of several models are taken apart. Pre: is_training_object().
void add_training_object(const torch::TorchFile& file, std::uint64_t rank,
                         StateDictBuilder& builder);

}  // namespace unishard::converters::dcp
