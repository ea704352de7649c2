#pragma once
// Files beside a model that hold the state of a training run, as the Trainer of Hugging Face and
// accelerate write them. Readers of models do not read them, and say so.
#include "unishard/format/storage.hpp"

#include <string>
#include <vector>

namespace unishard::converters {

/// Returns one line for each such file or folder in `folder`, by name, and one when a schedule has
/// no optimizer beside it.
std::vector<std::string> unread_training_files(Storage& storage, const Path& folder);

}  // namespace unishard::converters
