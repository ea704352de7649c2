#include "unishard/trainer/gpt_config.hpp"

#include "unishard/format/error.hpp"

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

constexpr std::int64_t kSizeMax = std::int64_t{1} << 24;
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
  HuggingFaceReader(const Json& json, std::string_view where) : json_(json), where_(where) {}

  GptConfig read() const {
    if (!json_.is_object())
      raise(ErrorCode::InvalidArgument, where_ + ": the model's configuration is not an object");
    check_kind();
    check_arithmetic();
    GptConfig config;
    config.vocabulary = size("vocab_size");
    config.context = context();
    config.layers = size("n_layer");
    config.width = size("n_embd");
    config.heads = size("n_head");
    config.dropout = dropout();
    config.tied_head = tied_head();
    if (config.width % config.heads != 0)
      refuse("n_embd", "a multiple of n_head, which is " + std::to_string(config.heads));
    if (const Json* inner = find("n_inner"); inner && *inner != 4 * config.width)
      refuse("n_inner", "null or 4 * n_embd");
    return config;
  }

 private:
  const Json* find(std::string_view key) const {
    const auto found = json_.find(std::string(key));
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const {
    const Json* value = find(key);
    const std::string is = value ? " is " + value->dump() + "," : " is missing,";
    raise(ErrorCode::InvalidArgument, where_ + ": " + std::string(key) + is + " not " + expected);
  }

  std::int64_t size(std::string_view key) const {
    const Json* value = find(key);
    const bool is_size = value && value->is_number_integer() && *value >= 1 && *value <= kSizeMax;
    if (!is_size) refuse(key, "a whole number from 1 to " + std::to_string(kSizeMax));
    return value->get<std::int64_t>();
  }

  void check_kind() const {
    if (const Json* type = find("model_type"); !type || *type != "gpt2")
      refuse("model_type", "\"gpt2\"");
    const Json* architectures = find("architectures");
    if (!architectures) return;
    const bool known =
        architectures->is_array() && std::ranges::all_of(*architectures, [](const Json& name) {
          return name == "GPT2LMHeadModel" || name == "GPT2Model";
        });
    if (!known) refuse("architectures", "[\"GPT2LMHeadModel\"] or [\"GPT2Model\"]");
  }

  void check_arithmetic() const {
    const Json* activation = find("activation_function");
    if (activation && *activation != "gelu_new" && *activation != "gelu_pytorch_tanh")
      refuse("activation_function", "\"gelu_new\" or \"gelu_pytorch_tanh\"");
    const Json* epsilon = find("layer_norm_epsilon");
    if (epsilon && *epsilon != kLayerNormEpsilon) refuse("layer_norm_epsilon", "1e-05");
    for (const Fixed& option : kFixed) {
      const Json* value = find(option.key);
      if (value && *value != option.value) refuse(option.key, option.value ? "true" : "false");
    }
    if (const Json* pruned = find("pruned_heads"); pruned && !pruned->empty())
      refuse("pruned_heads", "empty");
    if (find("quantization_config")) refuse("quantization_config", "null");
  }

  /// Old files call n_positions n_ctx; some have both.
  std::int64_t context() const {
    if (!find("n_positions") && find("n_ctx")) return size("n_ctx");
    const std::int64_t positions = size("n_positions");
    if (find("n_ctx") && size("n_ctx") != positions)
      refuse("n_ctx", "n_positions, which is " + std::to_string(positions));
    return positions;
  }

  bool tied_head() const {
    const Json* tied = find("tie_word_embeddings");
    if (tied && !tied->is_boolean()) refuse("tie_word_embeddings", "true or false");
    return !tied || tied->get<bool>();
  }

  double dropout() const {
    std::optional<double> common;
    for (const std::string_view key : kDropouts) {
      const Json* value = find(key);
      if (value && (!value->is_number() || *value < 0 || *value >= 1))
        refuse(key, "a number from 0 up to 1");
      const double probability = value ? value->get<double>() : kHuggingFaceDropout;
      if (common && *common != probability) {
        raise(ErrorCode::InvalidArgument,
              where_ + ": resid_pdrop, embd_pdrop and attn_pdrop differ, here they are one number",
              "make them equal in the file, or give --dropout");
      }
      common = probability;
    }
    return *common;
  }

  const Json& json_;
  std::string where_;
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
