#pragma once
// Checkpoints of nanotron: `<run>/latest.txt` and `<run>/<step>/` with checkpoint_metadata.json,
// model_config.json, model/, optimizer/, lr_scheduler/ and random/.
// Source: nanotron 0.4, serialize/main, serialize/metadata, trainer.
#include "formats/dcp/state_dict.hpp"

#include <optional>

namespace unishard::converters::dcp {

/// Returns the folder of a checkpoint, where `path` is one or a run, of which the newest is taken.
/// Returns nullopt for every other path.
std::optional<Path> find_nanotron(Storage& storage, const Path& path);

/// Reads model, optimizer, schedule and counters.
/// Throws: Corrupt, naming it, for a missing or contradicting file; Unsupported for parts of
/// tensors that do not say where they lie.
void read_nanotron(Storage& storage, const Path& folder, StateDictBuilder& builder);

}  // namespace unishard::converters::dcp
