#include "workflows/model_size.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace unishard::tools {
namespace {

constexpr std::uint64_t kParametersMost = std::uint64_t{1} << 50;
constexpr std::uint64_t kNumberMost = std::uint64_t{1} << 30;  ///< no product of two overflows

/// The numbers of a config.json, and the sum of the modules that they describe.
class Counter {
 public:
  Counter(const Json& config, std::string_view where) : config_(config), where_(where) {}

  std::uint64_t need(std::string_view key) const {
    const auto found = config_.find(std::string(key));
    if (found == config_.end() || !found->is_number_integer())
      raise(ErrorCode::InvalidArgument, fmt::format("{} has no number {}", where_, quote(key)));
    return checked(key, *found, 1);
  }
  std::uint64_t number(std::string_view key, std::uint64_t otherwise) const {
    const auto found = config_.find(std::string(key));
    return found == config_.end() || found->is_null() ? otherwise : checked(key, *found, 0);
  }
  bool flag(std::string_view key, bool otherwise) const {
    const auto found = config_.find(std::string(key));
    return found == config_.end() || !found->is_boolean() ? otherwise : found->get<bool>();
  }

  /// Adds `count` modules with so many parameters of their own.
  /// Throws: InvalidArgument when the model has more than any has.
  void add(std::uint64_t parameters, std::uint64_t count = 1) {
    size.parameters += product(parameters, count);
    if (size.parameters > kParametersMost) raise_too_many();
    size.largest_layer = std::max(size.largest_layer, parameters);
  }
  /// Adds linear layers.
  void linear(std::uint64_t in, std::uint64_t out, bool bias, std::uint64_t count) {
    const std::uint64_t each = product(in, out) + (bias ? out : 0);
    add(each, count);
    in_layers_ += each * count;
  }
  /// Returns the size, after the last add().
  ModelSize finished() const {
    ModelSize all = size;
    const std::uint64_t layers = std::max<std::uint64_t>(size.layers, 1);
    all.largest_unit = std::max(in_layers_ / layers, size.parameters - in_layers_);
    all.matrices = in_layers_;
    return all;
  }

  ModelSize size;

 private:
  [[noreturn]] void raise_too_many() const {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: the model has more than 2^50 parameters", where_));
  }
  std::uint64_t product(std::uint64_t a, std::uint64_t b) const {
    if (b != 0 && a > kParametersMost / b) raise_too_many();
    return a * b;
  }
  std::uint64_t checked(std::string_view key, const Json& value, std::uint64_t least) const {
    const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() >= least &&
                      value.get<std::uint64_t>() <= kNumberMost;
    if (fits) return value.get<std::uint64_t>();
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: {} is {}, not a whole number from {} to 2^30", where_, key, value.dump(),
                      least));
  }

  const Json& config_;
  std::string_view where_;
  std::uint64_t in_layers_ = 0;  ///< parameters of the linear modules in layers
};

/// Llama and its relatives: rotary positions, norms without a bias, a gated MLP.
void count_llama(Counter& model, std::string_view type) {
  const bool is_gemma = type == "gemma";
  const std::uint64_t hidden = model.need("hidden_size"), layers = model.need("num_hidden_layers");
  const std::uint64_t heads = model.need("num_attention_heads");
  const std::uint64_t inner = model.need("intermediate_size");
  const std::uint64_t key_heads = model.number("num_key_value_heads", heads);
  const bool has_own_width = type == "qwen3" || is_gemma;
  const std::uint64_t usual_width = is_gemma ? 256 : 128;
  const std::uint64_t width = model.number(
      "head_dim", has_own_width ? usual_width : hidden / std::max<std::uint64_t>(heads, 1));
  const bool bias = model.flag("attention_bias", false);
  const bool query_bias = bias || type == "qwen2";
  if (type == "phi3") {
    model.linear(hidden, (heads + 2 * key_heads) * width, false, layers);
    model.linear(hidden, 2 * inner, false, layers);
  } else {
    model.linear(hidden, heads * width, query_bias, layers);
    model.linear(hidden, key_heads * width, query_bias, 2 * layers);
    model.linear(hidden, inner, model.flag("mlp_bias", false), 2 * layers);
  }
  model.linear(heads * width, hidden, bias, layers);
  model.linear(inner, hidden, model.flag("mlp_bias", false), layers);
  model.add(hidden, 2 * layers + 1);
  if (type == "qwen3") model.add(width, 2 * layers);
  const std::uint64_t vocabulary = model.need("vocab_size");
  model.add(vocabulary * hidden, model.flag("tie_word_embeddings", is_gemma) ? 1 : 2);
  model.size.layers = layers, model.size.hidden = hidden, model.size.vocabulary = vocabulary;
}

/// GPT-2 and its relatives: norms, linear layers and a plain MLP, all with a bias.
void count_gpt(Counter& model, std::uint64_t hidden, std::uint64_t layers, std::uint64_t inner,
               bool splits_attention) {
  model.linear(hidden, splits_attention ? hidden : 3 * hidden, true,
               splits_attention ? 3 * layers : layers);
  model.linear(hidden, hidden, true, layers);
  model.linear(hidden, inner, true, layers);
  model.linear(inner, hidden, true, layers);
  model.add(2 * hidden, 2 * layers + 1);
  const std::uint64_t vocabulary = model.need("vocab_size");
  model.size.layers = layers, model.size.hidden = hidden, model.size.vocabulary = vocabulary;
}

void count_gpt2(Counter& model) {
  const std::uint64_t hidden = model.need("n_embd");
  count_gpt(model, hidden, model.need("n_layer"), model.number("n_inner", 4 * hidden), false);
  model.add(model.size.vocabulary * hidden, model.flag("tie_word_embeddings", true) ? 1 : 2);
  model.add(model.need("n_positions") * hidden);
}

void count_neox(Counter& model) {
  const std::uint64_t hidden = model.need("hidden_size");
  count_gpt(model, hidden, model.need("num_hidden_layers"), model.need("intermediate_size"), false);
  model.add(model.size.vocabulary * hidden, model.flag("tie_word_embeddings", false) ? 1 : 2);
}

void count_bloom(Counter& model) {
  const std::uint64_t hidden = model.number("hidden_size", model.number("n_embed", 64));
  count_gpt(model, hidden, model.number("n_layer", 2), 4 * hidden, false);
  model.add(model.size.vocabulary * hidden, model.flag("tie_word_embeddings", true) ? 1 : 2);
  model.add(2 * hidden);  // the norm of the embeddings
}

void count_opt(Counter& model, std::string_view where) {
  const std::uint64_t hidden = model.need("hidden_size");
  if (model.number("word_embed_proj_dim", hidden) != hidden)
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: word_embed_proj_dim differs from hidden_size", where),
          "give the size with --params and --largest-layer");
  count_gpt(model, hidden, model.need("num_hidden_layers"), model.need("ffn_dim"), true);
  model.add(model.size.vocabulary * hidden, model.flag("tie_word_embeddings", true) ? 1 : 2);
  model.add((model.need("max_position_embeddings") + 2) * hidden);
}

/// Returns a name up to its first part that is a number: "h.3" of "h.3.mlp.weight". It is empty
/// where no part is one.
std::string_view unit_of(std::string_view name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool is_number =
        !part.empty() && std::ranges::all_of(part, [](char c) { return '0' <= c && c <= '9'; });
    if (is_number) return name.substr(0, end);
    begin = end + 1;
  }
  return {};
}

}  // namespace

ModelSize model_size_of_config(const Json& config, std::string_view where) {
  if (!config.is_object())
    raise(ErrorCode::InvalidArgument, fmt::format("{} is not an object", where));
  const auto found = config.find("model_type");
  const std::string type =
      found != config.end() && found->is_string() ? found->get<std::string>() : "";
  constexpr std::array<std::string_view, 6> kLlamas{"llama", "mistral", "qwen2",
                                                    "qwen3", "gemma",   "phi3"};
  Counter model(config, where);
  if (std::ranges::find(kLlamas, type) != kLlamas.end()) {
    count_llama(model, type);
  } else if (type == "gpt2") {
    count_gpt2(model);
  } else if (type == "gpt_neox") {
    count_neox(model);
  } else if (type == "bloom") {
    count_bloom(model);
  } else if (type == "opt") {
    count_opt(model, where);
  } else {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: the model_type {} is not known", where, quote(type)),
          "give the size with --params and --largest-layer; known: gpt2, gpt_neox, bloom, opt, "
          "llama, mistral, qwen2, qwen3, gemma, phi3");
  }
  return model.finished();
}

ModelSize model_size_of_catalog(const Catalog& catalog) {
  ModelSize size;
  size.parameters = catalog.parameter_count();
  std::set<std::string_view> seen;
  std::map<std::string_view, std::uint64_t> layers, units;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!seen.insert(tensor.fqn).second) continue;
    const std::string_view name = tensor.fqn;
    const std::size_t dot = name.rfind('.');
    std::uint64_t& layer = layers[dot == name.npos ? name : name.substr(0, dot)];
    layer += tensor.elements();
    const bool is_table = name.find("embed") != name.npos || name.find("lm_head") != name.npos;
    if (tensor.shape.size() >= 2 && !is_table) size.matrices += tensor.elements();
    std::uint64_t& unit = units[unit_of(name)];
    unit += tensor.elements();
    size.largest_unit = std::max(size.largest_unit, unit);
    size.largest_layer = std::max(size.largest_layer, layer);
  }
  size.largest_layer = std::min(size.largest_layer, size.parameters);
  size.largest_unit = std::min(size.largest_unit, size.parameters);
  size.matrices = std::min(size.matrices, size.parameters);
  return size;
}

}  // namespace unishard::tools
