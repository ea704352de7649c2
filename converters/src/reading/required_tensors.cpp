#include "reading/required_tensors.hpp"

#include "unishard/format/error.hpp"

#include "core/model_tensors.hpp"
#include "reading/model_type.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <unordered_set>

namespace unishard::converters {
namespace {

struct RequiredTensors {
  std::string_view types;  ///< values of `model_type`, separated by blanks
  std::string_view base;   ///< what precedes the names in a model with a head
  std::string_view names;  ///< without ".weight"; see Names::look_for()
};

// clang-format off
/// tests/interop/peers/renamed_models.py compares each row with the classes of transformers.
constexpr std::array<RequiredTensors, 20> kRequired = {{
    {"llama mistral qwen2 gemma smollm3 granite phi3 mixtral qwen2_moe gpt_oss deepseek_v2 deepseek_v3", "model",
     "embed_tokens|lm_head layers.*.input_layernorm layers.*.post_attention_layernorm norm"},
    {"qwen3 qwen3_moe", "model",
     "embed_tokens|lm_head layers.*.input_layernorm layers.*.post_attention_layernorm layers.*.self_attn.k_norm layers.*.self_attn.q_norm norm"},
    {"gemma2", "model",
     "embed_tokens|lm_head layers.*.input_layernorm layers.*.post_attention_layernorm layers.*.post_feedforward_layernorm layers.*.pre_feedforward_layernorm norm"},
    {"gemma3_text", "model",
     "embed_tokens|lm_head layers.*.input_layernorm layers.*.post_attention_layernorm layers.*.post_feedforward_layernorm layers.*.pre_feedforward_layernorm "
     "layers.*.self_attn.k_norm layers.*.self_attn.q_norm norm"},
    {"olmo2", "model",
     "embed_tokens|lm_head layers.*.post_attention_layernorm layers.*.post_feedforward_layernorm layers.*.self_attn.k_norm layers.*.self_attn.q_norm norm"},
    {"phi", "model", "embed_tokens|lm_head final_layernorm layers.*.input_layernorm"},
    {"gpt2 gpt_bigcode gpt_neo", "transformer", "h.*.ln_1 h.*.ln_2 ln_f wpe wte|lm_head"},
    {"gptj", "transformer", "h.*.ln_1 ln_f wte|lm_head"},
    {"gpt_neox", "gpt_neox", "embed_in|embed_out final_layer_norm layers.*.input_layernorm layers.*.post_attention_layernorm"},
    {"bloom", "transformer", "h.*.input_layernorm h.*.post_attention_layernorm ln_f word_embeddings|lm_head word_embeddings_layernorm"},
    {"mpt", "transformer", "blocks.*.norm_1 blocks.*.norm_2 norm_f wte|lm_head"},
    {"opt", "model", "decoder.embed_positions decoder.embed_tokens|lm_head decoder.layers.*.final_layer_norm decoder.layers.*.self_attn_layer_norm"},
    {"bart mbart", "model",
     "shared|encoder.embed_tokens|decoder.embed_tokens|lm_head decoder.embed_positions decoder.layernorm_embedding decoder.layers.*.encoder_attn_layer_norm decoder.layers.*.final_layer_norm "
     "decoder.layers.*.self_attn_layer_norm"},
    {"pegasus marian", "model",
     "shared|encoder.embed_tokens|decoder.embed_tokens|lm_head decoder.layers.*.encoder_attn_layer_norm decoder.layers.*.final_layer_norm decoder.layers.*.self_attn_layer_norm"},
    {"t5 mt5", "transformer",
     "shared|encoder.embed_tokens|decoder.embed_tokens|lm_head encoder.block.*.layer.0.layer_norm encoder.block.*.layer.1.layer_norm encoder.final_layer_norm"},
    {"bert", "bert",
     "embeddings.LayerNorm embeddings.position_embeddings embeddings.token_type_embeddings embeddings.word_embeddings "
     "encoder.layer.*.attention.output.LayerNorm encoder.layer.*.output.LayerNorm"},
    {"roberta xlm-roberta camembert", "roberta",
     "embeddings.LayerNorm embeddings.position_embeddings embeddings.token_type_embeddings embeddings.word_embeddings "
     "encoder.layer.*.attention.output.LayerNorm encoder.layer.*.output.LayerNorm"},
    {"electra", "electra",
     "embeddings.LayerNorm embeddings.position_embeddings embeddings.token_type_embeddings embeddings.word_embeddings "
     "encoder.layer.*.attention.output.LayerNorm encoder.layer.*.output.LayerNorm"},
    {"distilbert", "distilbert",
     "embeddings.LayerNorm embeddings.position_embeddings embeddings.word_embeddings transformer.layer.*.output_layer_norm "
     "transformer.layer.*.sa_layer_norm"},
    {"modernbert", "model", "embeddings.norm final_norm layers.*.mlp_norm"},
}};
// clang-format on

/// The names of a model's tensors.
class Names {
 public:
  Names(const Catalog& catalog, std::string_view base) {
    for (const TensorInfo& tensor : catalog.tensors)
      if (is_of_model(tensor)) names_.insert(tensor.fqn);
    for (const Alias& alias : catalog.aliases) names_.insert(alias.fqn);
    const std::string before = std::string(base) + '.';
    const auto has_base = [&](const std::string& name) { return name.starts_with(before); };
    if (std::ranges::any_of(names_, has_base)) base_ = before;
  }

  /// Looks for the tensors of a pattern, in which `*` is the number of each layer that is there.
  void look_for(std::string_view pattern) {
    const std::size_t star = pattern.find('*');
    if (star == std::string_view::npos) return look_for_one(std::string(pattern));
    const std::string before(pattern.substr(0, star)), behind(pattern.substr(star + 1));
    for (const std::string& number : numbers_behind(base_ + before))
      look_for_one(fmt::format("{}{}{}", before, number, behind));
  }
  /// Returns what look_for() has not found; nothing where it has found nothing, because the model
  /// then has other names.
  std::vector<std::string> missing() const {
    return has_found_ ? missing_ : std::vector<std::string>();
  }

 private:
  /// `name` may be several with `|` between them, of which one is enough: tied tensors, of which a
  /// file has one. A head's own begin without the base.
  void look_for_one(const std::string& name) {
    for (std::size_t begin = 0, end = 0; end < name.size(); begin = end + 1) {
      end = std::min(name.find('|', begin), name.size());
      const std::string one = name.substr(begin, end - begin);
      // The first files of BERT call the weights of norms gamma.
      for (const std::string& whole :
           {base_ + one + ".weight", base_ + one + ".gamma", one + ".weight"})
        if (names_.contains(whole)) return void(has_found_ = true);
    }
    missing_.push_back(base_ + name.substr(0, name.find('|')) + ".weight");
  }

  std::set<std::string> numbers_behind(const std::string& before) const {
    std::set<std::string> numbers;
    for (const std::string& name : names_) {
      if (!name.starts_with(before)) continue;
      const std::string number =
          name.substr(before.size(), name.find('.', before.size()) - before.size());
      if (!number.empty() &&
          std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; }))
        numbers.insert(number);
    }
    return numbers;
  }

  std::unordered_set<std::string> names_;
  std::string base_;  ///< of these names; empty for a model without a head
  bool has_found_ = false;
  std::vector<std::string> missing_;
};

}  // namespace

std::vector<std::string> doubts_about_required(std::string_view model_type,
                                               const Catalog& catalog) {
  const auto* const known = std::ranges::find_if(
      kRequired, [&](const RequiredTensors& each) { return is_listed(model_type, each.types); });
  if (known == kRequired.end()) return {};
  Names names(catalog, known->base);
  std::istringstream patterns{std::string(known->names)};
  for (std::string pattern; patterns >> pattern;) names.look_for(pattern);
  const std::vector<std::string> missing = names.missing();
  if (missing.empty()) return {};
  return {fmt::format(
      "every model of the type {} in config.json has {}{}, and no file here has it: a weight may "
      "be missing",
      model_type, unishard::quote(missing.front()),
      missing.size() == 1 ? "" : fmt::format(" and {} more tensors", missing.size() - 1))};
}

}  // namespace unishard::converters
