#pragma once
// Dimensions of a GPT-2, and their form in Hugging Face's transformers.
// Thread safety: values and pure functions.
#include "unishard/format/json.hpp"
#include "unishard/trainer/foreign_names.hpp"

#include <cstdint>
#include <string_view>

namespace unishard::trainer {

struct GptConfig {
  std::int64_t vocabulary = 256;
  std::int64_t context = 128;
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  double dropout = 0.0;
  bool tied_head = true;  ///< the output layer shares the embedding's weight
};

/// Returns the preset "nano", "tiny", "small", "medium" or "gpt2".
/// Throws: InvalidArgument, listing the presets.
GptConfig gpt_preset(std::string_view name);
bool is_gpt_preset(std::string_view name);

/// Returns the model that a config.json of transformers describes. Keys that do not affect the
/// arithmetic are ignored. `where` begins every message.
/// Throws: InvalidArgument, naming the key and its value, for another kind of model and for
/// unsupported options.
GptConfig gpt_from_hugging_face(const Json& config, std::string_view where);
/// Returns the config.json from which transformers builds the same model.
Json gpt_to_hugging_face(const GptConfig& config);

/// Returns the names and layouts of GPT-2 in transformers (GPT2LMHeadModel, GPT2Model) and nanoGPT.
ForeignNames gpt_foreign_names();

}  // namespace unishard::trainer
