#pragma once
// The files of a run that lie beside its model and optimizer: schedules, random states, samplers.
// A conversion copies them as they are, so that nothing else would notice that one is cut.
#include "unishard/converters/loss.hpp"
#include "unishard/format/storage.hpp"

#include <string_view>

namespace unishard::converters {

/// Returns the files of torch.save or pickle beside a checkpoint of `format` that are damaged: cut,
/// without their end, or with other bytes than their CRC-32 says. Nothing in them is executed.
Losses damaged_files(Storage& storage, const Path& folder, std::string_view format);

}  // namespace unishard::converters
