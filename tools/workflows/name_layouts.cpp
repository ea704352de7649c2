#include "workflows/name_layouts.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace unishard::tools {
namespace {

/// Where a layer stands that is not one of the blocks.
enum class Place : std::uint8_t { Anywhere, BeforeBlocks, BehindBlocks };

/// A parameter outside of the blocks. `dimensions` tells two layers apart that both have a `weight`
/// alone; 0 is any number.
struct OuterName {
  std::string_view local, name;
  Place place = Place::Anywhere;
  std::size_t dimensions = 0;
};

/// The names that the training program gives, from its model's code, and those of the class of
/// transformers.
struct NameLayout {
  std::string_view name;
  std::uint64_t first_block = 0;              ///< number of its layer
  std::vector<std::string_view> block_parts;  ///< beginnings of the local names in a block
  std::string_view blocks;                    ///< what stands before the number of a block
  std::vector<OuterName> outer;
};

const std::vector<NameLayout>& layouts() {
  using enum Place;
  static const std::vector<NameLayout> all = {
      // GPT-NeoX: megatron/model/gpt2_model.py and word_embeddings.py; GPTNeoXForCausalLM.
      {"neox",
       2,
       {"attention.", "mlp.", "input_layernorm.", "post_attention_layernorm."},
       "gpt_neox.layers.",
       {{"word_embeddings.weight", "gpt_neox.embed_in.weight"},
        {"norm.weight", "gpt_neox.final_layer_norm.weight", BehindBlocks},
        {"norm.bias", "gpt_neox.final_layer_norm.bias", BehindBlocks},
        {"final_linear.weight", "embed_out.weight", BehindBlocks}}},
      // Megatron-DeepSpeed as BLOOM was trained with it; BloomForCausalLM.
      {"bloom",
       3,
       {"self_attention.", "mlp.", "input_layernorm.", "post_attention_layernorm."},
       "transformer.h.",
       {{"word_embeddings.weight", "transformer.word_embeddings.weight"},
        {"word_embeddings.norm.weight", "transformer.word_embeddings_layernorm.weight"},
        {"word_embeddings.norm.bias", "transformer.word_embeddings_layernorm.bias"},
        {"weight", "transformer.ln_f.weight", BehindBlocks, 1},
        {"bias", "transformer.ln_f.bias", BehindBlocks, 1}}},
      // LlamaForCausalLM cut into a pipeline of its own modules, each a layer.
      {"llama-pipe",
       1,
       {"self_attn.", "mlp.", "input_layernorm.", "post_attention_layernorm."},
       "model.layers.",
       {{"weight", "model.embed_tokens.weight", BeforeBlocks, 2},
        {"embed_tokens.weight", "model.embed_tokens.weight"},
        {"weight", "model.norm.weight", BehindBlocks, 1},
        {"norm.weight", "model.norm.weight", BehindBlocks},
        {"weight", "lm_head.weight", BehindBlocks, 2},
        {"lm_head.weight", "lm_head.weight", BehindBlocks}}},
  };
  return all;
}

const NameLayout& find_layout(std::string_view name) {
  const auto found = std::ranges::find(layouts(), name, &NameLayout::name);
  if (found != layouts().end()) return *found;
  raise(ErrorCode::InvalidArgument, fmt::format("--layout {}: there is no such layout", name),
        fmt::format("choose one of {}, or give names with --rename",
                    fmt::join(name_layouts(), ", ")));
}

/// "12.mlp.weight" is the parameter "mlp.weight" of layer 12. A module that several layers share
/// has a key instead of a number.
struct PipelineName {
  std::optional<std::uint64_t> layer;
  std::string local;
};

std::optional<PipelineName> parse_name(std::string_view fqn) {
  constexpr std::string_view kTied = "tied_modules.";
  if (fqn.starts_with(kTied)) {
    const std::size_t dot = fqn.find('.', kTied.size());
    if (dot == fqn.npos) return std::nullopt;
    return PipelineName{{}, std::string(fqn.substr(dot + 1))};
  }
  std::uint64_t layer = 0;
  const auto [end, error] = std::from_chars(fqn.data(), fqn.data() + fqn.size(), layer);
  const std::size_t digits = static_cast<std::size_t>(end - fqn.data());
  if (error != std::errc() || digits == fqn.size() || *end != '.') return std::nullopt;
  return PipelineName{layer, std::string(fqn.substr(digits + 1))};
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view(R"(\^$.|?*+()[]{})").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

class LayoutRules {
 public:
  LayoutRules(const NameLayout& layout, const Catalog& catalog) : layout_(layout) {
    for (const TensorInfo& tensor : catalog.tensors) {
      const auto name = parse_name(tensor.fqn);
      if (name && name->layer && is_in_block(name->local))
        blocks_[*name->layer].insert(name->local);
    }
    require_every_block();
    require_alike();
  }

  std::vector<RenameRule> rules_of(const Catalog& catalog) {
    std::vector<RenameRule> rules;
    for (const auto& [layer, parameters] : blocks_)
      rules.push_back({fmt::format("^{}\\.", layer),
                       fmt::format("{}{}.", layout_.blocks, layer - layout_.first_block)});
    std::map<std::string_view, std::size_t> dimensions;  // of the weights, else of the first state
    for (const TensorInfo& tensor : catalog.tensors) {
      const std::size_t count = tensor.shape.size();
      const auto [at, is_new] = dimensions.emplace(tensor.fqn, count);
      if (!is_new && tensor.state == state::kWeights) at->second = count;
    }
    std::set<std::string_view> done;
    for (const TensorInfo& tensor : catalog.tensors) {
      const std::string& fqn = tensor.fqn;
      if (!done.insert(fqn).second) continue;
      const auto name = parse_name(fqn);
      if (!name) refuse(fqn);
      if (name->layer && blocks_.contains(*name->layer)) continue;
      rules.push_back(
          {fmt::format("^{}$", escaped(fqn)), outer_name(fqn, *name, dimensions.at(fqn))});
    }
    return rules;
  }

 private:
  bool is_in_block(std::string_view local) const {
    return std::ranges::any_of(layout_.block_parts,
                               [&](std::string_view part) { return local.starts_with(part); });
  }

  /// A block that is not in the checkpoint, for example because it was frozen and left out, must
  /// not lend its name to the next.
  void require_every_block() const {
    std::uint64_t expected = layout_.first_block;
    for (const auto& [layer, parameters] : blocks_) {
      if (layer != expected++) {
        raise(ErrorCode::Mismatch,
              fmt::format("--layout {}: layer {} is no block of the model, and layer {} is one: "
                          "the blocks of this layout are the layers from {} on, without a gap",
                          layout_.name, expected - 1, layer, layout_.first_block),
              "if frozen layers were left out, their places are known to you only: --rename "
              "FROM=TO gives names");
      }
    }
  }

  /// Layers that are half a block, or a layer of another kind between blocks, have other
  /// parameters.
  void require_alike() const {
    for (const auto& [layer, parameters] : blocks_) {
      const auto& [first, expected] = *blocks_.begin();
      if (parameters == expected) continue;
      raise(ErrorCode::Mismatch,
            fmt::format("--layout {}: layers {} and {} do not have the same parameters, as the "
                        "blocks of a model do",
                        layout_.name, first, layer),
            "see `unishard inspect` for the names; --rename FROM=TO gives others");
    }
  }

  Place place_of(std::uint64_t layer) const {
    return layer < layout_.first_block ? Place::BeforeBlocks : Place::BehindBlocks;
  }

  std::string outer_name(const std::string& fqn, const PipelineName& name,
                         std::size_t dimensions) const {
    for (const OuterName& outer : layout_.outer) {
      const bool fits_place =
          outer.place == Place::Anywhere || !name.layer || outer.place == place_of(*name.layer);
      const bool fits_shape = outer.dimensions == 0 || outer.dimensions == dimensions;
      if (outer.local == name.local && fits_place && fits_shape) return std::string(outer.name);
    }
    refuse(fqn);
  }

  [[noreturn]] void refuse(const std::string& fqn) const {
    raise(ErrorCode::Mismatch,
          fmt::format("--layout {}: a model of this layout has no parameter {}", layout_.name,
                      quote(fqn)),
          "see `unishard inspect` for the names; --rename FROM=TO gives others");
  }

  const NameLayout& layout_;
  std::map<std::uint64_t, std::set<std::string>> blocks_;  ///< layer, its local names
};

/// Meta's names and those of LlamaForCausalLM, as transformers' convert_llama_weights_to_hf.py has
/// them. Each is a whole part of a name, or several.
constexpr std::string_view kLlama = "llama";
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kLlamaNames = {{
    {"tok_embeddings", "model.embed_tokens"},
    {"norm", "model.norm"},
    {"output", "lm_head"},
    {"layers.*.attention.wq", "model.layers.*.self_attn.q_proj"},
    {"layers.*.attention.wk", "model.layers.*.self_attn.k_proj"},
    {"layers.*.attention.wv", "model.layers.*.self_attn.v_proj"},
    {"layers.*.attention.wo", "model.layers.*.self_attn.o_proj"},
    {"layers.*.feed_forward.w1", "model.layers.*.mlp.gate_proj"},
    {"layers.*.feed_forward.w2", "model.layers.*.mlp.down_proj"},
    {"layers.*.feed_forward.w3", "model.layers.*.mlp.up_proj"},
    {"layers.*.attention_norm", "model.layers.*.input_layernorm"},
    {"layers.*.ffn_norm", "model.layers.*.post_attention_layernorm"},
}};

/// Returns the rules, of which each name must match one.
std::vector<RenameRule> llama_rules(const Catalog& catalog) {
  std::vector<RenameRule> rules;
  for (const auto& [meta, transformers] : kLlamaNames) {
    std::string from = "^", to;
    for (const char c : meta) from += c == '*' ? "(\\d+)" : c == '.' ? "\\." : std::string(1, c);
    for (const char c : transformers) to += c == '*' ? "$1" : std::string(1, c);
    rules.push_back({from + "\\.weight$", to + ".weight"});
  }
  Renamer rename(rules);
  for (const TensorInfo& tensor : catalog.tensors) {
    if (rename(tensor.fqn) != tensor.fqn) continue;
    raise(ErrorCode::Mismatch,
          fmt::format("--layout {}: Meta's Llama has no parameter {}", kLlama, quote(tensor.fqn)),
          "see `unishard inspect` for the names; --rename FROM=TO gives others");
  }
  return rules;
}

}  // namespace

std::vector<std::string> name_layouts() {
  std::vector<std::string> names;
  for (const NameLayout& layout : layouts()) names.emplace_back(layout.name);
  names.emplace_back(kLlama);
  return names;
}

std::vector<RenameRule> layout_rules(std::string_view layout, const Catalog& catalog) {
  if (layout == kLlama) return llama_rules(catalog);
  return LayoutRules(find_layout(layout), catalog).rules_of(catalog);
}

bool changes_values(std::string_view layout) { return layout == kLlama; }

}  // namespace unishard::tools
