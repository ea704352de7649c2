#include "unishard/trainer/gpt_config.hpp"

#include "unishard/format/error.hpp"

#include "models/hugging_face_object.hpp"

#include <algorithm>
#include <array>
#include <optional>

namespace unishard::trainer {
namespace {

struct Preset {
  std::string_view name;
  GptConfig config;
};

constexpr std::array<Preset, 5> kPresets{{
    {"nano", {.context = 32, .layers = 2, .width = 32, .heads = 2}},
    {"tiny", {.context = 64, .layers = 4, .width = 128, .heads = 4}},
    {"small", {.context = 128, .layers = 6, .width = 384, .heads = 6}},
    {"medium", {.context = 256, .layers = 8, .width = 512, .heads = 8}},
    {"gpt2", {.vocabulary = 50257, .context = 1024, .layers = 12, .width = 768, .heads = 12}},
}};

constexpr double kLayerNormEpsilon = 1e-5;
constexpr double kHuggingFaceDropout = 0.1;  ///< of GPT2Config, where the file says nothing
constexpr std::array<std::string_view, 3> kDropouts = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};

/// Options of GPT2Config that change the arithmetic, each with the only value that this model
/// supports, which is also the default when the key is missing.
struct Fixed {
  std::string_view key;
  bool value;
};
constexpr std::array<Fixed, 4> kFixed = {{
    {"scale_attn_weights", true},
    {"scale_attn_by_inverse_layer_idx", false},
    {"reorder_and_upcast_attn", false},
    {"add_cross_attention", false},
}};

class HuggingFaceReader {
 public:
  HuggingFaceReader(const Json& json, std::string_view where) : in_(json, where) {}

  GptConfig read() const {
    in_.require_kind("gpt2", "GPT2LMHeadModel", "GPT2Model");
    check_arithmetic();
    GptConfig config;
    config.vocabulary = in_.size("vocab_size");
    config.context = context();
    config.layers = in_.size("n_layer");
    config.width = in_.size("n_embd");
    config.heads = in_.size("n_head");
    config.dropout = dropout();
    config.tied_head = in_.tied_head_or(true);
    if (config.width % config.heads != 0)
      in_.refuse("n_embd", "a multiple of n_head, which is " + std::to_string(config.heads));
    if (const Json* inner = in_.find("n_inner"); inner && *inner != 4 * config.width)
      in_.refuse("n_inner", "null or 4 * n_embd");
    return config;
  }

 private:
  void check_arithmetic() const {
    const Json* activation = in_.find("activation_function");
    if (activation && *activation != "gelu_new" && *activation != "gelu_pytorch_tanh")
      in_.refuse("activation_function", "\"gelu_new\" or \"gelu_pytorch_tanh\"");
    in_.require("layer_norm_epsilon", kLayerNormEpsilon);
    for (const Fixed& option : kFixed) in_.require(option.key, option.value);
    if (const Json* pruned = in_.find("pruned_heads"); pruned && !pruned->empty())
      in_.refuse("pruned_heads", "empty");
  }

  /// Old files call n_positions n_ctx; some have both.
  std::int64_t context() const {
    if (!in_.find("n_positions") && in_.find("n_ctx")) return in_.size("n_ctx");
    const std::int64_t positions = in_.size("n_positions");
    if (in_.find("n_ctx") && in_.size("n_ctx") != positions)
      in_.refuse("n_ctx", "n_positions, which is " + std::to_string(positions));
    return positions;
  }

  double dropout() const {
    std::optional<double> common;
    for (const std::string_view key : kDropouts) {
      const double probability = in_.probability_or(key, kHuggingFaceDropout);
      if (common && *common != probability) {
        raise(ErrorCode::InvalidArgument,
              in_.where() +
                  ": resid_pdrop, embd_pdrop and attn_pdrop differ, here they are one number",
              "make them equal in the file, or give --dropout");
      }
      common = probability;
    }
    return *common;
  }

  detail::HuggingFaceObject in_;
};

}  // namespace

GptConfig gpt_preset(std::string_view name) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.config;
    known += (known.empty() ? "" : ", ") + std::string(preset.name);
  }
  raise(ErrorCode::InvalidArgument, "no model preset " + quote(name), "known: " + known);
}

bool is_gpt_preset(std::string_view name) {
  return std::ranges::find(kPresets, name, &Preset::name) != kPresets.end();
}

GptConfig gpt_from_hugging_face(const Json& config, std::string_view where) {
  return HuggingFaceReader(config, where).read();
}

Json gpt_to_hugging_face(const GptConfig& config) {
  Json json = {{"architectures", {"GPT2LMHeadModel"}},
               {"model_type", "gpt2"},
               {"vocab_size", config.vocabulary},
               {"n_positions", config.context},
               {"n_embd", config.width},
               {"n_layer", config.layers},
               {"n_head", config.heads},
               {"n_inner", nullptr},
               {"activation_function", "gelu_new"},
               {"layer_norm_epsilon", kLayerNormEpsilon}};
  for (const std::string_view key : kDropouts) json[std::string(key)] = config.dropout;
  for (const Fixed& option : kFixed) json[std::string(option.key)] = option.value;
  json["tie_word_embeddings"] = config.tied_head;
  json["dtype"] = "float32";
  json["torch_dtype"] = "float32";
  if (config.vocabulary != gpt_preset("gpt2").vocabulary) {
    // transformers' defaults are tokens of GPT-2's vocabulary
    json["bos_token_id"] = nullptr;
    json["eos_token_id"] = nullptr;
  }
  return json;
}

ForeignNames gpt_foreign_names() {
  return {.prefixes = {"transformer.", "module.", "_orig_mod."},
          .ignored = {"h.*.attn.bias", "h.*.attn.masked_bias"},
          .transposable = {"h.*.attn.c_attn.weight", "h.*.attn.c_proj.weight",
                           "h.*.mlp.c_fc.weight", "h.*.mlp.c_proj.weight"}};
}

}  // namespace unishard::trainer
