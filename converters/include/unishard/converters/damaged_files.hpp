#pragma once
// The files of a run and of a model that lie beside weights and optimizer: schedules, random
// states, samplers, tokenizers. A conversion copies them as they are, so that nothing else would
// notice that one is cut. Nothing in them is executed.
#include "unishard/converters/loss.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/catalog.hpp"
#include "unishard/format/storage.hpp"

#include <string_view>

namespace unishard::converters {

/// Returns the files of torch.save, pickle and JSON beside a checkpoint of `format` that are
/// damaged (cut, without their end, or with other bytes than their CRC-32 says) and those that the
/// system cannot read. Those that the format's reader, `source`, has named and not read are among
/// them.
Losses damaged_files(Storage& storage, const Path& folder, std::string_view format,
                     const Source& source);

/// Returns those of UniShard's own checkpoint: in the folder of its tag, and in that of the run
/// whose plug-in saved it. Names in the latter have its path.
Losses damaged_beside_tag(Storage& storage, const Path& tag_folder, const Catalog& catalog);

/// Returns the folder with the other files of a Trainer or of accelerate whose plug-in has saved
/// the checkpoint in `tag_folder`; `tag_folder` itself when none has.
Path folder_of_plug_in(Storage& storage, const Path& tag_folder, const Catalog& catalog);

}  // namespace unishard::converters
