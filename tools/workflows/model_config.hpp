#pragma once
// The small files of a model folder, and the config.json that a checkpoint brings along.
#include "unishard/converters/sink.hpp"

#include <string>
#include <vector>

namespace unishard::tools {

/// Key of client_state under which a run may keep the Hugging Face configuration of its model, a
/// JSON object (train_gpt does): a model folder that is made of it gets it as its config.json.
inline constexpr std::string_view kModelConfigKey = "hf_config";

/// Adds the config.json that `source` brings along to `files`, unless there is one: its dtype
/// becomes that of the floating tensors of `target`, where they have one. What cannot be written is
/// a line of `notes`.
void add_model_config(converters::SideFiles& files, const Catalog& source, const Catalog& target,
                      std::vector<std::string>& notes);

/// The small files of a model folder made of `input`: those beside it, and a config.json in any
/// case where there is one to be had. What is left out is a line of `notes`.
converters::SideFiles model_side_files(const Path& input, const Catalog& source,
                                       const Catalog& target, std::vector<std::string>& notes);

}  // namespace unishard::tools
