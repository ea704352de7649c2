#pragma once
// Doubts about files of safetensors that end with zeros. They have no checksums, and a copy that
// stopped in a file of the full size leaves zeros from there on.
#include "unishard/format/storage.hpp"

#include <optional>
#include <string>
#include <vector>

namespace unishard::converters {

/// Returns a remark on a file whose zeros begin inside of a tensor and go on to the end of the
/// file: through further tensors, or from the begin of a page. Whole tensors of zeros are usual
/// (biases, LoRA's B). nullopt for other files, and for those that cannot be read.
std::optional<std::string> doubt_about_tail(const File& file);

/// Returns the remarks on the file `path`, or on the files in that folder.
std::vector<std::string> doubts_about_tails(Storage& storage, const Path& path);

}  // namespace unishard::converters
