#pragma once
// What a training file that UniShard wrote says beside its embedded catalog (training_layout.hpp).
#include "containers/object_tree.hpp"
#include "containers/torch_file.hpp"
#include "core/later_changes.hpp"

namespace unishard::converters::torch {

/// Returns the settings, steps and values of the file's object, whose description `tree` is.
/// Throws: what reading a step counter throws.
FileScalars scalars_of(const TorchFile& file, const ObjectTree& tree);

}  // namespace unishard::converters::torch
