#pragma once
// A language model that the trainer builds: GPT-2 or one of the Llama family. The config.json of a
// Hugging Face folder says which.
// Thread safety: values and pure functions.
#include "unishard/format/json.hpp"
#include "unishard/trainer/foreign_names.hpp"
#include "unishard/trainer/gpt_config.hpp"
#include "unishard/trainer/llama_config.hpp"

#include <cstdint>
#include <string_view>
#include <variant>

namespace unishard::trainer {

using ModelConfig = std::variant<GptConfig, LlamaConfig>;

/// Returns a preset: one of gpt_preset() or of find_llama_preset().
/// Throws: InvalidArgument, listing the presets.
ModelConfig model_preset(std::string_view name);
bool is_model_preset(std::string_view name);

/// Returns the model that a config.json of transformers describes. `where` begins every message.
/// Throws: InvalidArgument, naming the key and its value, for a model or an option that is not
/// supported.
ModelConfig model_from_hugging_face(const Json& config, std::string_view where);
/// Returns the config.json from which transformers builds the same model.
Json model_to_hugging_face(const ModelConfig& model);
ForeignNames model_foreign_names(const ModelConfig& model);

std::int64_t vocabulary_of(const ModelConfig& model);
/// Returns the number of tokens of a training sample unless the user chooses it: the model's
/// context, and at most 1024 where the model has no weights for positions.
std::int64_t default_context(const ModelConfig& model);
/// Throws: InvalidArgument when the model cannot be trained on samples of `context` tokens. Only
/// the rotary scaling "dynamic" goes beyond the model's positions.
void require_context(const ModelConfig& model, std::int64_t context);

}  // namespace unishard::trainer
