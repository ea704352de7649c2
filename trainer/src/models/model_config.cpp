#include "unishard/trainer/model_config.hpp"

#include "unishard/format/error.hpp"

#include "models/hugging_face_object.hpp"

#include <algorithm>

namespace unishard::trainer {
namespace {

constexpr std::int64_t kSampleTokens = 1024;  ///< as transformers' run_clm.py

const LlamaConfig* as_llama(const ModelConfig& model) { return std::get_if<LlamaConfig>(&model); }

}  // namespace

ModelConfig model_preset(std::string_view name) {
  if (const auto llama = find_llama_preset(name)) return *llama;
  if (is_gpt_preset(name)) return gpt_preset(name);
  raise(ErrorCode::InvalidArgument, "no model preset " + quote(name),
        "known: nano, tiny, small, medium, gpt2, llama-nano, llama-tiny, llama-small; a folder "
        "needs a config.json");
}

bool is_model_preset(std::string_view name) {
  return is_gpt_preset(name) || find_llama_preset(name).has_value();
}

ModelConfig model_from_hugging_face(const Json& config, std::string_view where) {
  const detail::HuggingFaceObject object(config, where);
  const Json* type = object.find("model_type");
  if (type && *type == "gpt2") return gpt_from_hugging_face(config, where);
  if (type && type->is_string() && is_llama_type(type->get<std::string>()))
    return llama_from_hugging_face(config, where);
  object.refuse("model_type", R"(one of "gpt2", "llama", "mistral", "qwen2" and "qwen3")");
}

Json model_to_hugging_face(const ModelConfig& model) {
  const LlamaConfig* const llama = as_llama(model);
  return llama ? llama_to_hugging_face(*llama) : gpt_to_hugging_face(std::get<GptConfig>(model));
}

ForeignNames model_foreign_names(const ModelConfig& model) {
  return as_llama(model) ? llama_foreign_names() : gpt_foreign_names();
}

std::int64_t vocabulary_of(const ModelConfig& model) {
  return std::visit([](const auto& config) { return config.vocabulary; }, model);
}

std::int64_t default_context(const ModelConfig& model) {
  const LlamaConfig* const llama = as_llama(model);
  return llama ? std::min(llama->positions, kSampleTokens) : std::get<GptConfig>(model).context;
}

void require_context(const ModelConfig& model, std::int64_t context) {
  const LlamaConfig* const llama = as_llama(model);
  const std::int64_t positions = llama ? llama->positions : std::get<GptConfig>(model).context;
  if (context <= positions || (llama && llama->rotary.scaling == RotaryScaling::Dynamic)) return;
  raise(ErrorCode::InvalidArgument,
        "samples of " + std::to_string(context) +
            " tokens are longer than the model's context of " + std::to_string(positions),
        llama ? "a larger max_position_embeddings in config.json, with rope_scaling, extends it"
              : "n_positions in config.json sets it");
}

}  // namespace unishard::trainer
