#pragma once
// Signs in a model's folder that the training state that belongs to it is not there: the save was
// interrupted, or a part of it was removed.
// Thread safety: pure functions.
#include "unishard/converters/loss.hpp"
#include "unishard/format/storage.hpp"

#include <optional>

namespace unishard::converters {

/// Returns the optimizer of a save that did not end: `folder` is called checkpoint-<n> and lacks
/// the file that the Trainer or accelerate writes last, though another one beside it has that file,
/// or the folder has the Trainer's arguments; or its `latest` names a folder of DeepSpeed that is
/// gone. Empty where nothing says so: models alone lie in such folders too.
Losses missing_training_state(Storage& storage, const Path& folder);

/// Returns the first of these alone: for folders whose optimizer other readers find.
std::optional<Loss> unfinished_save(Storage& storage, const Path& folder);

}  // namespace unishard::converters
