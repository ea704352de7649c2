#pragma once
// trainer_state.json: the steps of a Trainer and its log, which may hold NaN and Infinity.
#include "unishard/converters/loss.hpp"
#include "unishard/format/catalog.hpp"
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace unishard::converters::trainer {

/// Returns the steps done; nullopt without the file. Appends to `losses` a file that cannot be
/// read. What is no JSON is broken: it is the last file of a save, which did not finish then.
std::optional<std::int64_t> read_progress(Storage& storage, const Path& folder, Losses& losses);

/// Returns whether one process wrote the checkpoint: several have states of random generators with
/// their numbers.
bool has_one_process(Storage& storage, const Path& folder);

/// Returns the smallest file from which a Trainer goes on at the catalog's step. (It compares the
/// batch size with its own, and warns. Without one, or without its control, it fails.)
std::string progress_text(const Catalog& catalog);

}  // namespace unishard::converters::trainer
