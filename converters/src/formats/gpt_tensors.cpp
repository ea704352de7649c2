#include "formats/gpt_tensors.hpp"

#include "unishard/format/error.hpp"

#include "formats/named_cuts.hpp"
#include "formats/shared_sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

namespace unishard::converters {
namespace {

/// Names of the tensors that every GPT has. They are beginnings: `weight` and `bias` follow.
struct GptNames {
  std::string_view layers, embedding, positions;
  std::array<std::string_view, 2> norm;  ///< one of them
  std::string_view head;
  std::array<std::string_view, 4> matrices;                 ///< in a layer
  std::array<std::array<std::string_view, 2>, 2> norms_of;  ///< in a layer: one of each pair
};
constexpr std::string_view kFirstMatrix = "mlp.linear_fc1.", kSecondMatrix = "mlp.linear_fc2.";
constexpr std::string_view kOldFirstMatrix = "mlp.dense_h_to_4h.",
                           kOldSecondMatrix = "mlp.dense_4h_to_h.";
constexpr std::array<std::string_view, 4> kOldMatrices = {
    "self_attention.query_key_value.", "self_attention.dense.", kOldFirstMatrix, kOldSecondMatrix};
constexpr std::array<std::array<std::string_view, 2>, 2> kOldNorms = {
    {{"input_layernorm.", "input_norm."}, {"post_attention_layernorm.", "post_attention_norm."}}};
constexpr std::array<GptNames, 3> kForms = {
    {{"decoder.layers.",
      "embedding.word_embeddings.",
      "embedding.position_embeddings.",
      {"decoder.final_layernorm.", "decoder.final_layernorm."},
      "output_layer.",
      {"self_attention.linear_qkv.", "self_attention.linear_proj.", kFirstMatrix, kSecondMatrix},
      {{{"input_layernorm.", "self_attention.linear_qkv.layer_norm_"},
        {"pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"}}}},
     {"language_model.encoder.layers.",
      "language_model.embedding.word_embeddings.",
      "language_model.embedding.position_embeddings.",
      {"language_model.encoder.final_layernorm.", "language_model.encoder.final_norm."},
      "language_model.output_layer.",
      kOldMatrices,
      kOldNorms},
     {"language_model.transformer.layers.",
      "language_model.embedding.word_embeddings.",
      "language_model.embedding.position_embeddings.",
      {"language_model.transformer.final_layernorm.",
       "language_model.transformer.final_layernorm."},
      "language_model.output_layer.",
      kOldMatrices,
      kOldNorms}}};

class Missing {
 public:
  Missing(const std::set<std::string>& names, const GptNames& form, const MegatronRun& run)
      : names_(names), form_(form), run_(run) {}

  std::vector<std::string> find() {
    require({}, {{form_.embedding}}, false);
    if (run_.has_positions) require({}, {{form_.positions}}, false);
    for (std::uint64_t layer = 0; layer < run_.layers; ++layer)
      require_layer(fmt::format("{}{}.", form_.layers, layer));
    require({}, form_.norm, run_.has_norm_biases);
    if (!run_.is_tied) require({}, {{form_.head}}, false);
    return std::move(missing_);
  }

 private:
  void require_layer(const std::string& before) {
    for (const std::string_view matrix : form_.matrices)
      require(before, {{matrix}}, run_.has_biases);
    for (const auto& norms : form_.norms_of) require(before, norms, run_.has_norm_biases);
  }

  /// One of the beginnings is enough; the first is named where there is none.
  void require(const std::string& before, std::span<const std::string_view> beginnings,
               bool has_bias) {
    const auto has = [&](std::string_view beginning, std::string_view end) {
      return names_.contains(fmt::format("{}{}{}", before, beginning, end));
    };
    const auto require_end = [&](std::string_view end) {
      if (std::ranges::none_of(beginnings, [&](std::string_view b) { return has(b, end); }))
        missing_.push_back(fmt::format("{}{}{}", before, beginnings.front(), end));
    };
    require_end("weight");
    if (has_bias) require_end("bias");
  }

  const std::set<std::string>& names_;
  const GptNames& form_;
  const MegatronRun& run_;
  std::vector<std::string> missing_;
};

/// The rows of a layer's first matrix and the columns of its second.
struct Inner {
  std::string first;
  std::uint64_t rows = 0, columns = 0;
};

std::vector<Inner> inner_sizes(const Catalog& part) {
  std::vector<Inner> sizes;
  for (const TensorInfo& tensor : part.tensors) {
    for (const auto& [first, second] :
         {std::pair(kFirstMatrix, kSecondMatrix), std::pair(kOldFirstMatrix, kOldSecondMatrix)}) {
      const std::string end = fmt::format("{}weight", first);
      if (!tensor.fqn.ends_with(end) || tensor.shape.size() != 2) continue;
      const std::string before = tensor.fqn.substr(0, tensor.fqn.size() - end.size());
      const auto other = part.find(fmt::format("{}{}weight", before, second), tensor.state);
      if (!other || part.tensors[*other].shape.size() != 2) continue;
      sizes.push_back({tensor.fqn, tensor.shape[0], part.tensors[*other].shape[1]});
    }
  }
  return sizes;
}

bool is_gated(const Inner& sizes) { return sizes.rows == 2 * sizes.columns; }

std::optional<std::string> find_wrong_gate(const Catalog& part, const MegatronRun& run) {
  const bool has_gate = run.is_gated || has_gates(part);
  for (const Inner& sizes : inner_sizes(part)) {
    if (is_gated(sizes) == has_gate && (has_gate || sizes.rows == sizes.columns)) continue;
    return fmt::format("{} has {} rows for {} columns of the matrix behind it, and {}",
                       quote(sizes.first), sizes.rows, sizes.columns,
                       run.is_gated ? "the run had gates (swiglu)"
                       : has_gate   ? "other layers have gates"
                                    : "it should have as many, or twice as many with gates");
  }
  return std::nullopt;
}

/// A size of a whole tensor that the arguments tell.
struct ToldSize {
  std::string_view end;  ///< of the name
  std::size_t dimension = 0;
  bool is_cut = false;
  std::optional<std::uint64_t> size;
  const char* argument;
};

std::array<ToldSize, 8> told_sizes(const MegatronRun& run) {
  const char* const heads = "num_attention_heads, num_query_groups and kv_channels";
  return {{{"word_embeddings.weight", 1, false, run.hidden, "hidden_size"},
           {"word_embeddings.weight", 0, true, run.padded_vocabulary, "padded_vocab_size"},
           {"output_layer.weight", 0, true, run.padded_vocabulary, "padded_vocab_size"},
           {"for_head.weight", 0, true, run.padded_vocabulary, "padded_vocab_size"},
           {"linear_qkv.weight", 0, true, run.rows_of_attention, heads},
           {"query_key_value.weight", 0, true, run.rows_of_attention, heads},
           {"linear_fc2.weight", 1, true, run.inner, "ffn_hidden_size"},
           {"dense_4h_to_h.weight", 1, true, run.inner, "ffn_hidden_size"}}};
}

std::optional<std::string> find_wrong_size(const TensorInfo& tensor, const MegatronRun& run) {
  for (const ToldSize& told : told_sizes(run)) {
    if (!told.size || !tensor.fqn.ends_with(told.end) || tensor.shape.size() != 2) continue;
    const std::uint64_t size = tensor.shape[told.dimension] * (told.is_cut ? run.tensor_ranks : 1);
    if (size == *told.size) continue;
    return fmt::format("{} has {} {} in all, and by {} they are {}", quote(tensor.fqn), size,
                       told.dimension == 0 ? "rows" : "columns", told.argument, *told.size);
  }
  return std::nullopt;
}

/// The padding is smaller than a rank's part, unless the vocabulary is smaller than what its rows
/// are a multiple of.
std::optional<std::string> find_wrong_vocabulary(const TensorInfo& tensor, const MegatronRun& run) {
  const bool is_of_vocabulary =
      std::ranges::any_of(std::array{"word_embeddings.weight", "output_layer.weight"},
                          [&](std::string_view end) { return tensor.fqn.ends_with(end); });
  if (!is_of_vocabulary || !run.vocabulary || tensor.shape.empty()) return std::nullopt;
  const std::uint64_t rows = tensor.shape[0], before_last = rows * (run.tensor_ranks - 1);
  const bool is_one_unit = run.vocabulary_unit && *run.vocabulary_unit == rows * run.tensor_ranks;
  if (*run.vocabulary > before_last || is_one_unit) return std::nullopt;
  return fmt::format("vocab_size {} would leave nothing of the last rank's {} rows of {}",
                     *run.vocabulary, rows, quote(tensor.fqn));
}

constexpr const char *kGptWidth = "width", *kGptTokens = "tokens", *kGptPositions = "positions";
constexpr const char *kGptAttention = "attention", *kGptHeads = "heads", *kGptFirst = "first",
                     *kGptInner = "inner";

/// What the dimensions of a weight are called. A bias has those of the rows.
struct GptSizes {
  std::string_view end;              ///< of the name, before `weight` or `bias`
  std::array<const char*, 2> sizes;  ///< the second is null where there is one only
};
/// The first that matches counts.
constexpr std::array<GptSizes, 16> kGptSizes = {{
    {"q_layernorm.", {"queries' norm", nullptr}},
    {"k_layernorm.", {"keys' norm", nullptr}},
    {"norm.", {kGptWidth, nullptr}},
    {"layer_norm_", {kGptWidth, nullptr}},
    {"position_embeddings.", {kGptPositions, kGptWidth}},
    {"word_embeddings.", {kGptTokens, kGptWidth}},
    {"output_layer.", {kGptTokens, kGptWidth}},
    {"word_embeddings_for_head.", {kGptTokens, kGptWidth}},
    {"linear_qkv.", {kGptAttention, kGptWidth}},
    {"query_key_value.", {kGptAttention, kGptWidth}},
    {"linear_proj.", {kGptWidth, kGptHeads}},
    {"self_attention.dense.", {kGptWidth, kGptHeads}},
    {kFirstMatrix, {kGptFirst, kGptWidth}},
    {kSecondMatrix, {kGptWidth, kGptInner}},
    {kOldFirstMatrix, {kGptFirst, kGptWidth}},
    {kOldSecondMatrix, {kGptWidth, kGptInner}},
}};

/// Returns what the dimensions of a tensor are called; none for one that is in no table.
std::vector<std::string> size_names(const std::string& fqn, const MegatronRun& run) {
  const bool is_bias = fqn.ends_with("bias");
  const std::string_view name = std::string_view(fqn).substr(0, fqn.size() - (is_bias ? 4 : 6));
  const auto* const found = std::ranges::find_if(
      kGptSizes, [&](const GptSizes& each) { return name.ends_with(each.end); });
  if (found == kGptSizes.end()) return {};
  // Attention by latents has norms of the latents too, which have a size of their own.
  const bool is_of_latents = name.find("attention.") != name.npos && name.ends_with("norm.") &&
                             !name.ends_with("q_layernorm.") && !name.ends_with("k_layernorm.");
  const bool is_fused = name.ends_with("layer_norm_") &&
                        !name.ends_with("linear_qkv.layer_norm_") &&
                        !name.ends_with("linear_fc1.layer_norm_");
  if (is_of_latents || is_fused) return {};
  std::vector<std::string> names = {found->sizes[0]};
  if (!is_bias && found->sizes[1] != nullptr) names.emplace_back(found->sizes[1]);
  const auto layer = parse_layer_name(fqn);
  if (!layer || !run.has_unlike_layers) return names;
  for (std::string& size : names)
    if (size != kGptWidth) size += fmt::format(" of layer {}", layer->layer);
  return names;
}

}  // namespace

std::vector<std::string> missing_gpt_tensors(const std::set<std::string>& names,
                                             std::string_view layers_of, const MegatronRun& run) {
  const auto* const form = std::ranges::find(kForms, layers_of, &GptNames::layers);
  if (form == kForms.end()) return {};
  return Missing(names, *form, run).find();
}

bool has_gates(const Catalog& part) { return std::ranges::any_of(inner_sizes(part), is_gated); }

std::optional<std::string> find_contradiction(const Catalog& part, const MegatronRun& run) {
  if (auto wrong = find_wrong_gate(part, run)) return wrong;
  for (const TensorInfo& tensor : part.tensors) {
    if (auto wrong = find_wrong_size(tensor, run)) return wrong;
    if (auto wrong = find_wrong_vocabulary(tensor, run)) return wrong;
  }
  return std::nullopt;
}

std::optional<std::string> find_wrong_shape(const Catalog& whole, const MegatronRun& run) {
  SharedSizes sizes;
  sizes.tell(kGptWidth, run.hidden, "hidden_size");
  sizes.tell(kGptInner, run.inner, "ffn_hidden_size");
  sizes.tell(kGptHeads, run.columns_of_heads, "num_attention_heads and kv_channels");
  sizes.tell(kGptPositions, run.positions, "max_position_embeddings");
  for (const TensorInfo& tensor : whole.tensors) {
    if (tensor.state != state::kWeights) continue;
    const std::vector<std::string> names = size_names(tensor.fqn, run);
    if (names.empty()) continue;
    if (auto wrong = sizes.compare(tensor, names)) return wrong;
  }
  return std::nullopt;
}

}  // namespace unishard::converters
