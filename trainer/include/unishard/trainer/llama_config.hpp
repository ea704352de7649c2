#pragma once
// Dimensions of a model of the Llama family (Llama, Mistral, Qwen2, Qwen3), and their form in
// Hugging Face's transformers.
// Thread safety: values and pure functions.
#include "unishard/format/json.hpp"
#include "unishard/trainer/foreign_names.hpp"
#include "unishard/trainer/rotary_config.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace unishard::trainer {

enum class LlamaFamily : std::uint8_t { Llama, Mistral, Qwen2, Qwen3 };

struct LlamaConfig {
  LlamaFamily family = LlamaFamily::Llama;
  std::int64_t vocabulary = 256;
  std::int64_t positions = 128;  ///< the longest context that the model is meant for
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t inner = 352;  ///< width inside the MLP
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;    ///< heads of keys and values; each serves heads / kv_heads queries
  std::int64_t head_width = 0;  ///< 0: width / heads
  double epsilon = 1e-6;        ///< of the RMS norms
  double deviation = 0.02;      ///< of initial weights
  double dropout = 0.0;         ///< of attention weights
  bool tied_head = false;       ///< the output layer shares the embedding's weight
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;     ///< RMS norms of queries and keys, head by head
  std::int64_t window = 0;  ///< tokens that a sliding layer attends to, its own included; 0: all
  std::vector<bool> sliding{};  ///< layers that slide; empty: all do, if there is a window
  RotaryConfig rotary{};
  /// Keys of the config.json that do not affect the arithmetic; they are written back.
  Json other = Json::object();

  std::int64_t width_of_head() const { return head_width > 0 ? head_width : width / heads; }
  /// Returns how many tokens `layer` attends to; 0: all.
  std::int64_t window_of(std::int64_t layer) const;
};

/// Returns the preset "llama-nano", "llama-tiny" or "llama-small"; nullopt for another name.
std::optional<LlamaConfig> find_llama_preset(std::string_view name);
/// Returns true for the `model_type` of a family.
bool is_llama_type(std::string_view model_type);

/// Throws: InvalidArgument when sizes contradict each other. `where` begins the message.
void require_consistent(const LlamaConfig& config, std::string_view where);

/// Returns the model that a config.json of transformers describes. `where` begins every message.
/// Throws: InvalidArgument, naming the key and its value, for another kind of model and for
/// unsupported options.
LlamaConfig llama_from_hugging_face(const Json& config, std::string_view where);
/// Returns the config.json from which transformers builds the same model.
Json llama_to_hugging_face(const LlamaConfig& config);

/// Returns the names of the family in transformers (LlamaForCausalLM, LlamaModel and so on).
ForeignNames llama_foreign_names();

}  // namespace unishard::trainer
