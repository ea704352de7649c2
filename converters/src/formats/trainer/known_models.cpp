#include "formats/trainer/known_models.hpp"

#include "reading/model_type.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace unishard::converters::trainer {
namespace {

struct KnownModel {
  std::string_view types;  ///< values of `model_type`, separated by blanks
  std::string_view order;
};

// clang-format off
// tests/interop/peers/trainer_resumes.py compares each row with transformers.
constexpr std::array<KnownModel, 37> kModels = {{
    {"llama mistral qwen2 qwen3 gemma gemma2 gemma3_text stablelm olmo olmo2 cohere granite smollm3 exaone4 starcoder2",
     "model(embed_tokens layers*(self_attn(q_proj k_proj v_proj o_proj q_norm k_norm) mlp(gate_proj up_proj down_proj c_fc c_proj) "
     "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm) norm) lm_head score classifier qa_outputs"},
    {"granitemoe granitemoeshared",
     "model(embed_tokens layers*(self_attn(q_proj k_proj v_proj o_proj) input_layernorm post_attention_layernorm "
     "block_sparse_moe(router experts(gate_up_proj down_proj)) shared_mlp(input_linear output_linear)) norm) lm_head"},
    {"granitemoehybrid",
     "model(embed_tokens layers*(input_layernorm post_attention_layernorm block_sparse_moe(router experts(gate_up_proj down_proj)) "
     "shared_mlp(input_linear output_linear) mamba(dt_bias A_log D conv1d in_proj norm out_proj) self_attn(q_proj k_proj v_proj o_proj)) norm) lm_head"},
    {"jamba",
     "model(embed_tokens layers*(mamba(A_log D conv1d in_proj x_proj dt_proj out_proj dt_layernorm b_layernorm c_layernorm) "
     "self_attn(q_proj k_proj v_proj o_proj) feed_forward(gate_proj up_proj down_proj router experts(gate_up_proj down_proj)) "
     "input_layernorm pre_ff_layernorm) final_layernorm) lm_head score"},
    {"ernie4_5_moe",
     "model(embed_tokens layers*(self_attn(q_proj k_proj v_proj o_proj) mlp(gate_proj up_proj down_proj gate(weight moe_statics(e_score_correction_bias)) "
     "experts(gate_up_proj down_proj) shared_experts(gate_proj up_proj down_proj)) input_layernorm post_attention_layernorm) norm) lm_head"},
    {"minimax",
     "model(embed_tokens layers*(self_attn(q_proj k_proj v_proj o_proj norm qkv_proj out_proj output_gate slope_rate query_decay key_decay diagonal_decay) input_layernorm post_attention_layernorm "
     "mlp(gate experts(gate_up_proj down_proj))) norm) lm_head score qa_outputs"},
    {"nemotron_h",
     "model(embeddings layers*(norm mixer(dt_bias A_log D conv1d in_proj norm out_proj q_proj k_proj v_proj o_proj up_proj down_proj "
     "experts(up_proj down_proj) gate(weight e_score_correction_bias) shared_experts(up_proj down_proj) fc1_latent_proj fc2_latent_proj)) norm_f) lm_head"},
    {"mixtral qwen2_moe olmoe minimax_m2 gpt_oss phimoe",
     "model(embed_tokens layers*(self_attn(sinks q_proj k_proj v_proj o_proj q_norm k_norm) mlp(gate_proj up_proj down_proj gate router "
     "experts(gate_up_proj gate_up_proj_bias down_proj down_proj_bias) shared_expert(gate_proj up_proj down_proj) shared_expert_gate) input_layernorm post_attention_layernorm) norm) "
     "lm_head score qa_outputs"},
    {"flex_olmo",
     "model(embed_tokens layers*(self_attn(q_proj k_proj v_proj o_proj q_norm k_norm) mlp(gate experts(gate_up_proj down_proj)) "
     "post_attention_layernorm post_feedforward_layernorm) norm) lm_head"},
    {"qwen3_moe glm4_moe glm4_moe_lite deepseek_v2 deepseek_v3 solar_open",
     "model(embed_tokens layers*(self_attn(q_proj q_a_proj q_a_layernorm q_b_proj kv_a_proj_with_mqa kv_a_layernorm kv_b_proj k_proj v_proj o_proj "
     "q_norm k_norm) mlp(gate_proj up_proj down_proj experts(gate_up_proj down_proj) gate shared_experts(gate_proj up_proj down_proj)) "
     "input_layernorm post_attention_layernorm) norm) lm_head score qa_outputs"},
    {"qwen3_next qwen3_5_moe_text",
     "model(embed_tokens layers*(linear_attn(dt_bias A_log conv1d in_proj_qkvz in_proj_ba norm out_proj in_proj_qkv in_proj_z in_proj_b in_proj_a) self_attn(q_proj k_proj v_proj o_proj q_norm "
     "k_norm) mlp(gate_proj up_proj down_proj gate experts(gate_up_proj down_proj) shared_expert(gate_proj up_proj down_proj) shared_expert_gate) "
     "input_layernorm post_attention_layernorm) norm) lm_head score qa_outputs"},
    {"phi3 glm4",
     "model(embed_tokens layers*(self_attn(q_proj k_proj v_proj o_proj qkv_proj) mlp(gate_up_proj down_proj) input_layernorm "
     "post_attention_layernorm post_self_attn_layernorm post_mlp_layernorm) norm) lm_head score"},
    {"phi", "model(embed_tokens layers*(self_attn(q_proj k_proj v_proj dense) mlp(fc1 fc2) input_layernorm) final_layernorm) lm_head score"},
    {"persimmon",
     "model(embed_tokens layers*(self_attn(query_key_value dense q_layernorm k_layernorm) mlp(dense_h_to_4h dense_4h_to_h) "
     "input_layernorm post_attention_layernorm) final_layernorm) lm_head score"},
    {"gpt2 gpt_bigcode", "transformer(wte wpe h*(ln_1 attn(c_attn c_proj) ln_2 mlp(c_fc c_proj)) ln_f) lm_head score classifier qa_outputs"},
    {"gpt_neo",
     "transformer(wte wpe h*(ln_1 attn(attention(k_proj v_proj q_proj out_proj)) ln_2 mlp(c_fc c_proj)) ln_f) lm_head score classifier qa_outputs"},
    {"gptj codegen", "transformer(wte h*(ln_1 attn(k_proj v_proj q_proj qkv_proj out_proj) mlp(fc_in fc_out)) ln_f) lm_head score qa_outputs"},
    {"gpt_neox",
     "gpt_neox(embed_in layers*(input_layernorm post_attention_layernorm attention(query_key_value dense) mlp(dense_h_to_4h dense_4h_to_h)) "
     "final_layer_norm) embed_out lm_head score classifier qa_outputs"},
    {"bloom",
     "transformer(word_embeddings word_embeddings_layernorm h*(input_layernorm self_attention(query_key_value dense) post_attention_layernorm "
     "mlp(dense_h_to_4h dense_4h_to_h)) ln_f) lm_head score classifier qa_outputs"},
    {"falcon",
     "transformer(word_embeddings h*(self_attention(query_key_value dense) mlp(dense_h_to_4h dense_4h_to_h) input_layernorm) ln_f) "
     "lm_head score classifier qa_outputs"},
    {"mpt", "transformer(wte blocks*(norm_1 attn(Wqkv out_proj) norm_2 ffn(up_proj down_proj)) norm_f) lm_head score classifier qa_outputs"},
    {"mamba", "backbone(embeddings layers*(norm mixer(A_log D conv1d in_proj x_proj dt_proj out_proj)) norm_f) lm_head"},
    {"mamba2", "backbone(embeddings layers*(norm mixer(dt_bias A_log D conv1d in_proj norm out_proj)) norm_f) lm_head"},
    {"opt",
     "model(decoder(embed_tokens embed_positions final_layer_norm layers*(self_attn(k_proj v_proj q_proj out_proj) self_attn_layer_norm "
     "fc1 fc2 final_layer_norm))) lm_head score qa_outputs"},
    {"biogpt",
     "biogpt(embed_tokens embed_positions layers*(self_attn(k_proj v_proj q_proj out_proj) self_attn_layer_norm fc1 fc2 final_layer_norm) "
     "layer_norm) output_projection score classifier"},
    {"bart mbart pegasus marian",
     "model(shared encoder(embed_tokens embed_positions layers*(self_attn(k_proj v_proj q_proj out_proj) self_attn_layer_norm fc1 fc2 "
     "final_layer_norm) layernorm_embedding layer_norm) decoder(embed_tokens embed_positions layers*(self_attn(k_proj v_proj q_proj out_proj) "
     "self_attn_layer_norm encoder_attn(k_proj v_proj q_proj out_proj) encoder_attn_layer_norm fc1 fc2 final_layer_norm) layernorm_embedding "
     "layer_norm)) lm_head classification_head(dense out_proj) qa_outputs"},
    {"whisper",
     "model(encoder(conv1 conv2 embed_positions layers*(self_attn(k_proj v_proj q_proj out_proj) self_attn_layer_norm fc1 fc2 final_layer_norm) "
     "layer_norm) decoder(embed_tokens embed_positions layers*(self_attn(k_proj v_proj q_proj out_proj) self_attn_layer_norm "
     "encoder_attn(k_proj v_proj q_proj out_proj) encoder_attn_layer_norm fc1 fc2 final_layer_norm) layer_norm)) proj_out"},
    {"t5 mt5",
     "shared encoder(embed_tokens block*(layer*(SelfAttention(q k v o relative_attention_bias) layer_norm DenseReluDense(wi wi_0 wi_1 wo))) "
     "final_layer_norm) decoder(embed_tokens block*(layer*(SelfAttention(q k v o relative_attention_bias) layer_norm EncDecAttention(q k v o) "
     "DenseReluDense(wi wi_0 wi_1 wo))) final_layer_norm) lm_head"},
    {"bert",
     "bert(embeddings(word_embeddings position_embeddings token_type_embeddings LayerNorm) encoder(layer*(attention(self(query key value) "
     "output(dense LayerNorm)) intermediate(dense) output(dense LayerNorm))) pooler(dense)) cls(predictions(transform(dense LayerNorm) decoder)) "
     "classifier qa_outputs"},
    {"roberta",
     "roberta(embeddings(word_embeddings token_type_embeddings LayerNorm position_embeddings) encoder(layer*(attention(self(query key value) "
     "output(dense LayerNorm)) intermediate(dense) output(dense LayerNorm)))) lm_head(dense layer_norm decoder) "
     "classifier(dense out_proj) qa_outputs"},
    {"xlm-roberta camembert",
     "lm_head(dense layer_norm decoder) classifier(dense out_proj) qa_outputs roberta(embeddings(word_embeddings token_type_embeddings LayerNorm position_embeddings) encoder(layer*(attention(self(query key value) "
     "output(dense LayerNorm)) intermediate(dense) output(dense LayerNorm))))"},
    {"electra",
     "electra(embeddings(word_embeddings position_embeddings token_type_embeddings LayerNorm) embeddings_project encoder(layer*(attention(self(query key value) "
     "output(dense LayerNorm)) intermediate(dense) output(dense LayerNorm)))) "
     "generator_predictions(LayerNorm dense) generator_lm_head classifier(dense out_proj) qa_outputs"},
    {"mpnet",
     "mpnet(embeddings(word_embeddings position_embeddings LayerNorm) encoder(layer*(attention(attn(q k v o) LayerNorm) intermediate(dense) "
     "output(dense LayerNorm)) relative_attention_bias)) lm_head(dense layer_norm decoder) classifier(dense out_proj) qa_outputs"},
    {"distilbert",
     "distilbert(embeddings(word_embeddings position_embeddings LayerNorm) transformer(layer*(attention(q_lin k_lin v_lin out_lin) sa_layer_norm "
     "ffn(lin1 lin2) output_layer_norm))) vocab_transform vocab_layer_norm vocab_projector pre_classifier classifier qa_outputs"},
    {"albert",
     "albert(embeddings(word_embeddings position_embeddings token_type_embeddings LayerNorm) encoder(embedding_hidden_mapping_in "
     "albert_layer_groups*(albert_layers*(full_layer_layer_norm attention(query key value dense LayerNorm) ffn ffn_output))) pooler) "
     "predictions(LayerNorm dense decoder) classifier qa_outputs"},
    {"deberta deberta-v2",
     "deberta(embeddings(word_embeddings position_embeddings LayerNorm) encoder(layer*(attention(self(q_bias v_bias in_proj query_proj key_proj "
     "value_proj) output(dense LayerNorm)) intermediate(dense) output(dense LayerNorm)))) cls(predictions(transform(dense LayerNorm) decoder)) "
     "pooler(dense) classifier qa_outputs"},
    {"modernbert",
     "model(embeddings(tok_embeddings norm) layers*(attn_norm attn(Wqkv Wo) mlp_norm mlp(Wi Wo)) final_norm) head(dense norm) decoder classifier"},
}};
// clang-format on

/// Parameters and modules below a module that the table does not take apart. A module's own
/// parameters come before those of the modules in it.
constexpr std::array<std::string_view, 11> kLeaves = {
    "weight", "bias",    "base_layer",       "original_module",  "modules_to_save",      "lora_A",
    "lora_B", "default", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"};
constexpr std::uint32_t kLeafCount = kLeaves.size();

std::optional<std::uint32_t> leaf_number(std::string_view part) {
  const auto* const found = std::ranges::find(kLeaves, part);
  if (found == kLeaves.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - kLeaves.begin());
}

std::optional<std::uint32_t> number_in(std::string_view part) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  if (error != std::errc() || end != part.data() + part.size()) return std::nullopt;
  return number;
}

std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0;;) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    parts.push_back(name.substr(at, end - at));
    if (end == name.size()) return parts;
    at = end + 1;
  }
}

}  // namespace

ModelOrder::ModelOrder(std::string_view text) : top_(parse(text)) {}

std::vector<ModelOrder::Module> ModelOrder::parse(std::string_view& text) {
  std::vector<Module> modules;
  while (!text.empty() && text.front() != ')') {
    Module module;
    const std::size_t end = std::min(text.find_first_of(" ()*"), text.size());
    module.name = text.substr(0, end);
    text.remove_prefix(end);
    if (text.starts_with('*')) {
      module.is_list = true;
      text.remove_prefix(1);
    }
    if (text.starts_with('(')) {
      text.remove_prefix(1);
      module.below = parse(text);
      text.remove_prefix(1);  // ')'
    }
    if (text.starts_with(' ')) text.remove_prefix(1);
    modules.push_back(std::move(module));
  }
  return modules;
}

std::optional<OrderKey> ModelOrder::place_of(std::string_view name) const {
  constexpr std::string_view kAdapter = "base_model.model.";
  if (name.starts_with(kAdapter)) name.remove_prefix(kAdapter.size());
  const std::vector<std::string_view> parts = parts_of(name);
  if (auto key = walk(top_, false, parts, {})) return key;
  for (std::uint32_t i = 0; i < top_.size(); ++i) {
    if (top_[i].below.empty()) continue;
    // The base model alone.
    auto key = walk(top_[i].below, top_[i].is_list, parts, {kLeafCount + i});
    if (key) return key;
  }
  return std::nullopt;
}

std::optional<OrderKey> ModelOrder::walk(const std::vector<Module>& modules, bool is_list,
                                         std::span<const std::string_view> parts, OrderKey key) {
  if (is_list) {
    const auto number = parts.empty() ? std::nullopt : number_in(parts.front());
    if (!number) return std::nullopt;
    key.push_back(*number);
    parts = parts.subspan(1);
  }
  if (parts.empty()) return key;
  const auto module = std::ranges::find(modules, parts.front(), &Module::name);
  if (module != modules.end()) {
    key.push_back(kLeafCount + static_cast<std::uint32_t>(module - modules.begin()));
    return walk(module->below, module->is_list, parts.subspan(1), std::move(key));
  }
  for (const std::string_view part : parts) {
    const auto leaf = leaf_number(part);
    if (!leaf) return std::nullopt;
    key.push_back(*leaf);
  }
  return key;
}

std::optional<ModelOrder> known_order(std::string_view model_type) {
  const auto* const found = std::ranges::find_if(
      kModels, [&](const KnownModel& model) { return is_listed(model_type, model.types); });
  if (found == kModels.end()) return std::nullopt;
  return ModelOrder(found->order);
}

std::vector<ModelOrder> known_orders() {
  std::vector<ModelOrder> orders;
  orders.reserve(kModels.size());
  for (const KnownModel& model : kModels) orders.emplace_back(model.order);
  return orders;
}

}  // namespace unishard::converters::trainer
