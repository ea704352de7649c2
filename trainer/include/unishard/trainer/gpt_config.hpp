#pragma once
// What a GPT-2 is made of, and how Hugging Face's transformers writes the same down. Values.
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
  bool tied_head = true;  ///< the output layer is the embedding's weight, not one of its own
};

/// "nano", "tiny", "small", "medium", "gpt2". Throws InvalidArgument listing them.
GptConfig gpt_preset(std::string_view name);
bool is_gpt_preset(std::string_view name);

/// The model of a config.json of transformers. Throws InvalidArgument naming `where`, the key and
/// its value for another kind of model and for options that this one does not have; keys that say
/// nothing about the arithmetic are ignored.
GptConfig gpt_from_hugging_face(const Json& config, std::string_view where);
/// The config.json with which transformers builds the same model.
Json gpt_to_hugging_face(const GptConfig& config);

/// GPT-2 as transformers (GPT2LMHeadModel, GPT2Model) and nanoGPT name and store it.
ForeignNames gpt_foreign_names();

}  // namespace unishard::trainer
