#pragma once
// A training state in one torch.save file, as people write it: {"model": ..., "optimizer": ...,
// "epoch": 3}, Lightning's .ckpt, a whole run's state under names of its own. It is read as the
// same content in a DCP folder is.
#include "containers/torch_file.hpp"
#include "formats/dcp/state_dict.hpp"

namespace unishard::converters::torch {

/// Returns true for an optimizer's state_dict(), for a dict that has one below it, and for one with
/// a model below one of the usual names ("model", "module", "state_dict", "model_state_dict").
bool is_training_object(Value root);

/// Returns true for an object of another form, such as a tuple, that has the state of an optimizer.
bool has_unread_optimizer(Value root);

/// Reads the state dict of a file whose object is_training_object().
/// Lifetime: `storage` must outlive the result.
dcp::StateDict read_training_file(Storage& storage, const TorchFile& file);

}  // namespace unishard::converters::torch
