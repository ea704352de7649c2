#pragma once
// What lies in the folder of a checkpoint and is not read: other models, other saves, broken links.
#include "unishard/converters/loss.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/storage.hpp"

#include <string_view>

namespace unishard::converters {

/// Returns what a folder that is read as `format` holds beside the checkpoint, and what the
/// format's reader, `source`, does not name. Of what it names, the damaged files are returned.
Losses files_beside(Storage& storage, const Path& folder, std::string_view format,
                    const Source& source);

/// Returns whether a folder that is read as `format` has its model in files of usual names.
bool has_model_files(std::string_view format);

}  // namespace unishard::converters
