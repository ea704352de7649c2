#pragma once
// A checkpoint of Hugging Face's Trainer or of accelerate as one training state: the model's
// tensors, the optimizer's states under the names of their parameters, groups, step, schedule.
#include "unishard/converters/source.hpp"

#include <memory>

namespace unishard::converters {

bool is_trainer(Storage& storage, const Path& path);
bool is_accelerate(Storage& storage, const Path& path);
/// Opens a folder of either.
/// Throws: Corrupt or Unsupported, naming the file.
std::unique_ptr<Source> open_trainer(Storage& storage, const Path& path,
                                     const OpenOptions& options = {});

}  // namespace unishard::converters
