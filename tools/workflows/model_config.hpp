#pragma once
// The small files of a model folder, and the config.json in a checkpoint's client state.
#include "unishard/converters/sink.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

/// Key of client_state under which a run may store the Hugging Face configuration of its model, a
/// JSON object, as train_gpt does. A model folder made from the checkpoint gets it as config.json.
inline constexpr std::string_view kModelConfigKey = "hf_config";

/// Returns the text of a model's configuration as a file.
std::string config_text(const Json& config);

/// Adds the config.json in `source` to `files` unless there is one. Its dtype becomes the one
/// that holds every floating-point tensor of `target` exactly. Adds a line to `notes` when it
/// cannot be written.
void add_model_config(converters::SideFiles& files, const Catalog& source, const Catalog& target,
                      std::vector<std::string>& notes);

/// Returns a remark where the config.json in `folder` counts heads of attention that
/// tensor-parallel ranks cannot share evenly; nullopt without such a file.
std::optional<std::string> remark_on_heads(const Path& folder, std::uint32_t ranks);

/// Makes the config.json among `files` state the dtype of the model in `target`.
void adapt_model_config(converters::SideFiles& files, const Catalog& target);

/// Returns the small files of a model folder made from `input`: those beside it, and a config.json
/// if there is one in either place, with the dtype of the weights. Adds a line to `notes` for what
/// is left out.
converters::SideFiles model_side_files(const Path& input, const Catalog& source,
                                       const Catalog& target, std::vector<std::string>& notes);

}  // namespace unishard::tools
