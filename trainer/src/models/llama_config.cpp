#include "unishard/trainer/llama_config.hpp"

#include "unishard/format/error.hpp"

#include "models/hugging_face_object.hpp"
#include "models/rotary_hugging_face.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace unishard::trainer {
namespace {

using detail::HuggingFaceObject;

struct Family {
  LlamaFamily id;
  std::string_view model_type, causal, base;
};

constexpr std::array<Family, 4> kFamilies = {{
    {LlamaFamily::Llama, "llama", "LlamaForCausalLM", "LlamaModel"},
    {LlamaFamily::Mistral, "mistral", "MistralForCausalLM", "MistralModel"},
    {LlamaFamily::Qwen2, "qwen2", "Qwen2ForCausalLM", "Qwen2Model"},
    {LlamaFamily::Qwen3, "qwen3", "Qwen3ForCausalLM", "Qwen3Model"},
}};

struct LlamaPreset {
  std::string_view name;
  std::int64_t positions, layers, width, inner, heads;
};

constexpr std::array<LlamaPreset, 3> kLlamaPresets = {{
    {"llama-nano", 64, 2, 32, 88, 4},
    {"llama-tiny", 128, 4, 128, 352, 4},
    {"llama-small", 256, 6, 384, 1024, 6},
}};

// Defaults of transformers, where the file says nothing.
constexpr std::int64_t kHeadWidthOfQwen3 = 128;
constexpr std::int64_t kWindow = 4096;
constexpr std::int64_t kMaxWindowLayers = 28;

constexpr std::string_view kSliding = "sliding_attention", kFull = "full_attention";

/// Keys that a config.json may have for what llama_to_hugging_face() writes under other names.
constexpr std::array<std::string_view, 5> kReplaced = {
    "rope_parameters", "original_max_position_embeddings", "partial_rotary_factor", "layer_types",
    "max_window_layers"};

const Family& family_of(LlamaFamily id) { return *std::ranges::find(kFamilies, id, &Family::id); }

const Family* find_family(std::string_view model_type) {
  const auto* const found = std::ranges::find(kFamilies, model_type, &Family::model_type);
  return found == kFamilies.end() ? nullptr : found;
}

class LlamaReader {
 public:
  LlamaReader(const Json& json, std::string_view where) : in_(json, where) {}

  LlamaConfig read() {
    const Family& family = read_family();
    in_.require_kind(family.model_type, family.causal, family.base);
    read_sizes();
    read_arithmetic();
    read_windows();
    require_consistent(config_, in_.where());
    config_.rotary =
        detail::rotary_from_hugging_face(in_, config_.positions, config_.width_of_head());
    require_consistent(config_, in_.where());
    keep_others();
    return std::move(config_);
  }

 private:
  bool is(LlamaFamily family) const { return config_.family == family; }

  const Family& read_family() {
    const Json* type = in_.find("model_type");
    const Family* family =
        type && type->is_string() ? find_family(type->get<std::string>()) : nullptr;
    if (!family) in_.refuse("model_type", R"("llama", "mistral", "qwen2" or "qwen3")");
    config_.family = family->id;
    return *family;
  }

  void read_sizes() {
    config_.vocabulary = in_.size("vocab_size");
    config_.positions = in_.size("max_position_embeddings");
    config_.layers = in_.size("num_hidden_layers");
    config_.width = in_.size("hidden_size");
    config_.inner = in_.size("intermediate_size");
    config_.heads = in_.size("num_attention_heads");
    config_.kv_heads = is(LlamaFamily::Llama) ? in_.size_or("num_key_value_heads", config_.heads)
                                              : in_.size("num_key_value_heads");
    config_.head_width = in_.size_or("head_dim", is(LlamaFamily::Qwen3) ? kHeadWidthOfQwen3 : 0);
    if (config_.head_width == 0 && config_.width % config_.heads != 0)
      in_.refuse("hidden_size",
                 "a multiple of num_attention_heads, which is " + std::to_string(config_.heads));
  }

  void read_arithmetic() {
    const Json* activation = in_.find("hidden_act");
    if (activation && *activation != "silu" && *activation != "swish")
      in_.refuse("hidden_act", "\"silu\"");
    config_.epsilon = in_.positive_or("rms_norm_eps", config_.epsilon);
    config_.deviation = in_.positive_or("initializer_range", config_.deviation);
    config_.dropout = in_.probability_or("attention_dropout", 0);
    config_.tied_head = in_.tied_head_or(false);
    config_.qk_norm = is(LlamaFamily::Qwen3);
    if (is(LlamaFamily::Llama)) config_.mlp_bias = in_.flag_or("mlp_bias", false);
    if (is(LlamaFamily::Llama) || is(LlamaFamily::Qwen3))
      config_.qkv_bias = config_.output_bias = in_.flag_or("attention_bias", false);
    if (is(LlamaFamily::Qwen2)) config_.qkv_bias = true;
  }

  /// The key is missing where the class's default counts, and null where nothing slides.
  std::int64_t window() const {
    return in_.json().contains("sliding_window") ? in_.size_or("sliding_window", 0) : kWindow;
  }

  void read_windows() {
    if (is(LlamaFamily::Mistral)) config_.window = window();
    if (is(LlamaFamily::Qwen2) || is(LlamaFamily::Qwen3)) {
      if (in_.flag_or("use_sliding_window", false)) config_.window = window();
      if (config_.window > 0) slide_upper_layers();
    }
    if (in_.find("layer_types")) read_layer_types();
  }

  void slide_upper_layers() {
    const Json* first = in_.find("max_window_layers");
    if (first && (!first->is_number_integer() || *first < 0))
      in_.refuse("max_window_layers", "a whole number");
    const std::int64_t begin = first ? first->get<std::int64_t>() : kMaxWindowLayers;
    config_.sliding.resize(static_cast<std::size_t>(config_.layers));
    for (std::int64_t layer = 0; layer < config_.layers; ++layer)
      config_.sliding[static_cast<std::size_t>(layer)] = layer >= begin;
  }

  void read_layer_types() {
    const Json& types = *in_.find("layer_types");
    if (!types.is_array() || types.size() != static_cast<std::size_t>(config_.layers))
      in_.refuse("layer_types", "a list of " + std::to_string(config_.layers) + " names");
    std::vector<bool> sliding;
    for (const Json& type : types) {
      if (type != kSliding && type != kFull)
        in_.refuse("layer_types", "a list of \"full_attention\" and \"sliding_attention\"");
      sliding.push_back(type == kSliding);
    }
    const bool is_qwen = is(LlamaFamily::Qwen2) || is(LlamaFamily::Qwen3);
    const bool any = std::ranges::count(sliding, true) > 0;
    const bool all = std::ranges::count(sliding, false) == 0;
    if (any && config_.window == 0) in_.refuse("layer_types", "without a sliding window");
    if (!is_qwen && config_.window > 0 && !all)
      in_.refuse("layer_types", "\"sliding_attention\" for all layers, as for this kind of model");
    if (is_qwen && config_.window > 0) config_.sliding = std::move(sliding);
  }

  void keep_others() {
    const Json written = llama_to_hugging_face(config_);
    for (const auto& [key, value] : in_.json().items()) {
      const bool is_replaced = std::ranges::find(kReplaced, key) != kReplaced.end();
      if (!written.contains(key) && !is_replaced) config_.other[key] = value;
    }
  }

  HuggingFaceObject in_;
  LlamaConfig config_;
};

void add_windows(const LlamaConfig& config, Json& json) {
  const Json window = config.window > 0 ? Json(config.window) : Json();
  if (config.family == LlamaFamily::Mistral) json["sliding_window"] = window;
  if (config.family != LlamaFamily::Qwen2 && config.family != LlamaFamily::Qwen3) return;
  json["use_sliding_window"] = config.window > 0;
  json["sliding_window"] = window;
  json["layer_types"] = Json::array();
  std::int64_t first = config.layers;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const bool slides = config.window_of(layer) > 0;
    json["layer_types"].push_back(slides ? kSliding : kFull);
    if (slides) first = std::min(first, layer);
  }
  json["max_window_layers"] = first;
}

}  // namespace

std::int64_t LlamaConfig::window_of(std::int64_t layer) const {
  const auto index = static_cast<std::size_t>(layer);
  const bool slides = sliding.empty() || (index < sliding.size() && sliding[index]);
  return slides ? window : 0;
}

std::optional<LlamaConfig> find_llama_preset(std::string_view name) {
  const auto* const preset = std::ranges::find(kLlamaPresets, name, &LlamaPreset::name);
  if (preset == kLlamaPresets.end()) return std::nullopt;
  LlamaConfig config;
  config.positions = preset->positions;
  config.layers = preset->layers;
  config.width = preset->width;
  config.inner = preset->inner;
  config.heads = preset->heads;
  return config;
}

bool is_llama_type(std::string_view model_type) { return find_family(model_type) != nullptr; }

void require_consistent(const LlamaConfig& config, std::string_view where) {
  const auto refuse = [&](const std::string& problem) {
    raise(ErrorCode::InvalidArgument, std::string(where) + ": " + problem);
  };
  const auto text = [](std::int64_t number) { return std::to_string(number); };
  if (config.head_width == 0 && config.width % config.heads != 0)
    refuse("a width of " + text(config.width) + " is not a multiple of " + text(config.heads) +
           " attention heads");
  if (config.heads % config.kv_heads != 0)
    refuse(text(config.heads) + " attention heads are not a multiple of " + text(config.kv_heads) +
           " key-value heads");
  const std::int64_t head = config.width_of_head();
  if (head % 2 != 0) refuse("heads of " + text(head) + " numbers cannot be turned: not even");
  if (config.rotary.scaling == RotaryScaling::Dynamic && head < 4)
    refuse("heads of 2 numbers are too narrow for the rotary scaling \"dynamic\"");
  const std::size_t factors = config.rotary.long_factor.size();
  if (factors > 0 && factors != static_cast<std::size_t>(head) / 2)
    refuse("heads of " + text(head) + " numbers need " + text(head / 2) + " factors of longrope");
}

LlamaConfig llama_from_hugging_face(const Json& config, std::string_view where) {
  return LlamaReader(config, where).read();
}

Json llama_to_hugging_face(const LlamaConfig& config) {
  const Family& family = family_of(config.family);
  Json json = {{"architectures", {family.causal}},
               {"model_type", family.model_type},
               {"vocab_size", config.vocabulary},
               {"max_position_embeddings", config.positions},
               {"num_hidden_layers", config.layers},
               {"hidden_size", config.width},
               {"intermediate_size", config.inner},
               {"num_attention_heads", config.heads},
               {"num_key_value_heads", config.kv_heads},
               {"hidden_act", "silu"},
               {"rms_norm_eps", config.epsilon},
               {"initializer_range", config.deviation},
               {"attention_dropout", config.dropout},
               {"tie_word_embeddings", config.tied_head},
               {"dtype", "float32"},
               {"torch_dtype", "float32"}};
  if (config.head_width > 0) json["head_dim"] = config.head_width;
  if (config.family == LlamaFamily::Llama) json["mlp_bias"] = config.mlp_bias;
  if (config.family == LlamaFamily::Llama || config.family == LlamaFamily::Qwen3)
    json["attention_bias"] = config.qkv_bias;
  add_windows(config, json);
  detail::rotary_to_hugging_face(config.rotary, json);
  for (const auto& [key, value] : config.other.items()) {
    if (!json.contains(key)) json[key] = value;
  }
  return json;
}

ForeignNames llama_foreign_names() {
  return {.prefixes = {"module.", "_orig_mod."},
          .missing_prefix = "model.",
          .ignored = {"*rotary_emb.inv_freq"}};
}

}  // namespace unishard::trainer
