#pragma once
// The small files beside a Hugging Face model. They are copied as they are into what may be
// published, so nothing but a regular file of the model's own folder is taken.
#include "unishard/converters/sink.hpp"

#include <string>
#include <vector>

namespace unishard::tools {

/// config.json, tokenizer files and the like of the folder `model`; none when it is no folder. A
/// link that leaves the folder (but for those of the Hugging Face cache, snapshots/REVISION ->
/// blobs), what is not a regular file, what is too large and a .json file that is not JSON are left
/// out, each with a line of `notes`.
converters::SideFiles find_side_files(const Path& model, std::vector<std::string>& notes);

/// Their names, for reports.
std::vector<std::string> names_of(const converters::SideFiles& files);

}  // namespace unishard::tools
