#pragma once
// Files beside a model that hold the state of a training run, as the Trainer of Hugging Face and
// accelerate write them. Readers of models do not read them, and say so.
#include "unishard/converters/loss.hpp"
#include "unishard/format/storage.hpp"

namespace unishard::converters {

/// Returns each such file or folder in `folder`, by name, and the optimizer when a schedule has
/// none beside it.
Losses unread_training_files(Storage& storage, const Path& folder);

}  // namespace unishard::converters
