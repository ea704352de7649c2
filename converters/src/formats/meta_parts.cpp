#include "formats/meta_parts.hpp"

#include "unishard/format/error.hpp"

#include "formats/named_cuts.hpp"
#include "formats/shared_sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>

namespace unishard::converters {
namespace {

constexpr const char *kMetaWidth = "dim", *kMetaInner = "hidden_dim", *kMetaQueries = "queries",
                     *kMetaKeys = "keys", *kMetaTokens = "tokens",
                     *kMetaFrequencies = "frequencies";

struct MetaTensor {
  std::string_view name;  ///< below `layers.<n>.`, or the whole name
  NamedCut cut = NamedCut::Whole;
  std::array<const char*, 2> sizes;  ///< what its dimensions are called; null: it has one only
};
// The facts are those of llama/model.py (a layer that is parallel in its columns has the rows of
// its weights cut) and of transformers' convert_llama_weights_to_hf.py.
constexpr std::array<MetaTensor, 9> kMetaLayers = {{
    {"attention.wq.weight", NamedCut::Rows, {kMetaQueries, kMetaWidth}},
    {"attention.wk.weight", NamedCut::Rows, {kMetaKeys, kMetaWidth}},
    {"attention.wv.weight", NamedCut::Rows, {kMetaKeys, kMetaWidth}},
    {"attention.wo.weight", NamedCut::Columns, {kMetaWidth, kMetaQueries}},
    {"feed_forward.w1.weight", NamedCut::Rows, {kMetaInner, kMetaWidth}},
    {"feed_forward.w2.weight", NamedCut::Columns, {kMetaWidth, kMetaInner}},
    {"feed_forward.w3.weight", NamedCut::Rows, {kMetaInner, kMetaWidth}},
    {"attention_norm.weight", NamedCut::Whole, {kMetaWidth, nullptr}},
    {"ffn_norm.weight", NamedCut::Whole, {kMetaWidth, nullptr}},
}};
constexpr std::array<MetaTensor, 3> kMetaOutside = {{
    {"norm.weight", NamedCut::Whole, {kMetaWidth, nullptr}},
    {"output.weight", NamedCut::Rows, {kMetaTokens, kMetaWidth}},
    {"rope.freqs", NamedCut::Whole, {kMetaFrequencies, nullptr}},
}};
constexpr std::string_view kEmbedding = "tok_embeddings.weight";

class MetaRules {
 public:
  MetaRules(const Json& params, std::size_t parts, const std::string& where)
      : params_(params), parts_(parts), where_(where) {}

  NamedCut cut_of(const TensorInfo& tensor) const {
    const auto layer = parse_layer_name(tensor.fqn);
    const bool is_in_layer = layer && layer->before == "layers.";
    const auto find = [](const auto& table, std::string_view name) -> std::optional<NamedCut> {
      const auto found = std::ranges::find(table, name, &MetaTensor::name);
      return found == table.end() ? std::nullopt : std::optional(found->cut);
    };
    if (is_in_layer) require_own_heads(tensor, layer->local);
    const auto known =
        is_in_layer ? find(kMetaLayers, layer->local) : find(kMetaOutside, tensor.fqn);
    if (known) return *known;
    if (tensor.fqn == kEmbedding && tensor.shape.size() == 2) return cut_of_embedding(tensor);
    raise(ErrorCode::Unsupported,
          fmt::format("{}: {} is no tensor of Llama's, whose names tell how they are cut", where_,
                      quote(tensor.fqn)),
          "say it with --merge-rules");
  }

  /// Throws: Corrupt for a tensor of a layer that the model does not have.
  void require_layer(const std::string& fqn) const {
    const auto layer = parse_layer_name(fqn);
    const auto layers = find_number("n_layers");
    if (layer && layers && layer->layer >= *layers)
      refuse(fmt::format("n_layers is {}, and the files have {}", *layers, quote(fqn)));
  }

  /// Throws: Corrupt where the embedding, the output and vocab_size have different rows.
  void require_one_vocabulary(const Catalog& first) const {
    const auto embedding = rows_of(first, kEmbedding), output = rows_of(first, "output.weight");
    if (embedding && output && *embedding != *output)
      refuse(fmt::format("{} has {} rows in all, and output.weight {}", kEmbedding, *embedding,
                         *output));
    const Json told = params_.value("vocab_size", Json());
    if (!told.is_number_unsigned()) return;  // Llama 2 has -1, for that of the tokenizer
    if (embedding && *embedding != told.get<std::uint64_t>())
      refuse(fmt::format("vocab_size is {}, and {} has {} rows in all", told.dump(), kEmbedding,
                         *embedding));
  }

 private:
  /// Returns the rows of the whole matrix; nullopt where there is none.
  std::optional<std::uint64_t> rows_of(const Catalog& first, std::string_view name) const {
    const auto found = std::ranges::find(first.tensors, name, &TensorInfo::fqn);
    if (found == first.tensors.end() || found->shape.size() != 2) return std::nullopt;
    return found->shape[0] * (cut_of(*found) == NamedCut::Rows ? parts_ : 1);
  }

  /// Llama 3 cuts the vocabulary, the others cut what each token has.
  NamedCut cut_of_embedding(const TensorInfo& tensor) const {
    const std::uint64_t dim = number("dim");
    if (tensor.shape[1] == dim) return NamedCut::Rows;
    if (tensor.shape[1] <= dim && tensor.shape[1] * parts_ == dim) return NamedCut::Columns;
    refuse(fmt::format("dim is {}, and {} has {} columns in each of {} files{}", dim, kEmbedding,
                       tensor.shape[1], parts_, missing_files(tensor.shape[1], dim)));
  }

  /// Where there are more files than heads of keys, several have the same heads.
  void require_own_heads(const TensorInfo& tensor, std::string_view local) const {
    const bool is_key = local == "attention.wk.weight" || local == "attention.wv.weight";
    if (!is_key && local != "attention.wq.weight") return;
    const std::uint64_t heads = number("n_heads"),
                        rows = tensor.shape.empty() ? 0 : tensor.shape[0];
    const std::uint64_t size = find_number("head_dim").value_or(number("dim") / heads);
    const std::uint64_t own_heads = is_key ? find_number("n_kv_heads").value_or(heads) : heads;
    const std::uint64_t wanted = size * own_heads;
    if (rows <= wanted && rows * parts_ == wanted)
      return require_whole_heads(tensor.fqn, is_key ? "n_kv_heads" : "n_heads", own_heads);
    if (is_key && rows <= wanted && rows * parts_ > wanted) {
      raise(
          ErrorCode::Unsupported,
          fmt::format("{}: {} has {} rows in each of {} files, and {} in the model: several files "
                      "have the same heads, which are not put together",
                      where_, tensor.fqn, rows, parts_, wanted),
          "convert it with transformers' convert_llama_weights_to_hf.py");
    }
    refuse(fmt::format("{} has {} rows in each of {} files, and not {} together{}", tensor.fqn,
                       rows, parts_, wanted, missing_files(rows, wanted)));
  }

  void require_whole_heads(const std::string& fqn, const char* key, std::uint64_t heads) const {
    if (heads % parts_ == 0) return;
    refuse(fmt::format("{} is {}, and {} is cut for {} files, of which none would have whole heads",
                       key, heads, fqn, parts_));
  }

  /// Returns the end of a sentence where more files of the same size would make the size in the
  /// model.
  std::string missing_files(std::uint64_t size, std::uint64_t wanted) const {
    if (size == 0 || wanted / size <= parts_ || wanted % size != 0) return {};
    return fmt::format(
        ": if the model was cut for {} files, consolidated.{:02}.pth is the first that is missing",
        wanted / size, parts_);
  }

  std::uint64_t number(std::string_view key) const {
    if (const auto found = find_number(key)) return *found;
    raise(ErrorCode::Unsupported,
          fmt::format("{}: a tensor-parallel model of Meta in {} parts, and params.json has no {}, "
                      "which tells how they make whole tensors",
                      where_, parts_, key),
          "bring Meta's own params.json back, or say it with --merge-rules");
  }
  std::optional<std::uint64_t> find_number(std::string_view key) const {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 28;
    if (!params_.is_object()) refuse("it is no object");
    const auto found = params_.find(std::string(key));
    if (found == params_.end() || found->is_null()) return std::nullopt;
    if (!found->is_number_unsigned() || *found == 0 || *found > kMost)
      refuse(fmt::format("{} is no size of a model", key));
    return found->get<std::uint64_t>();
  }
  [[noreturn]] void refuse(const std::string& why) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: params.json does not describe these files: {}", where_, why),
          "bring the missing files back, or the params.json of this model");
  }

  const Json& params_;
  const std::size_t parts_;
  const std::string& where_;
};

std::optional<std::uint64_t> size_in(const Json& params, const char* key) {
  const auto found = params.find(key);
  if (found == params.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<std::uint64_t>();
}

/// Returns the sizes that params.json tells.
SharedSizes told_sizes(const Json& params) {
  SharedSizes sizes;
  const auto width = size_in(params, kMetaWidth), heads = size_in(params, "n_heads");
  sizes.tell(kMetaWidth, width, kMetaWidth);
  sizes.tell(kMetaInner, size_in(params, kMetaInner), kMetaInner);
  auto head = size_in(params, "head_dim");
  const bool is_told = head.has_value();
  if (!head && width && heads && *heads > 0) head = *width / *heads;
  if (!head || !heads) return sizes;
  const auto keys = size_in(params, "n_kv_heads").value_or(*heads);
  const char* const size = is_told ? "head_dim" : "dim and n_heads";
  sizes.tell(kMetaQueries, *heads * *head,
             fmt::format("n_heads and {}", is_told ? size : kMetaWidth));
  sizes.tell(kMetaKeys, keys * *head, fmt::format("n_kv_heads and {}", size));
  sizes.tell(kMetaFrequencies, *head / 2, size);
  return sizes;
}

/// Returns what the dimensions of a tensor are called; nullopt for one in no table.
std::optional<std::vector<std::string>> size_names(const std::string& fqn) {
  if (fqn == kEmbedding) return std::vector<std::string>{kMetaTokens, kMetaWidth};
  const auto find = [](const auto& table,
                       std::string_view name) -> std::optional<std::vector<std::string>> {
    const auto found = std::ranges::find(table, name, &MetaTensor::name);
    if (found == table.end()) return std::nullopt;
    std::vector<std::string> names = {found->sizes[0]};
    if (found->sizes[1] != nullptr) names.emplace_back(found->sizes[1]);
    return names;
  };
  const auto layer = parse_layer_name(fqn);
  return layer ? find(kMetaLayers, layer->local) : find(kMetaOutside, fqn);
}

}  // namespace

Json meta_rules(const Catalog& first, const Json& params, std::size_t parts,
                const std::string& where) {
  const MetaRules rules(params, parts, where);
  std::map<std::string, NamedCut> cuts;
  for (const TensorInfo& tensor : first.tensors) {
    rules.require_layer(tensor.fqn);
    cuts.emplace(tensor.fqn, rules.cut_of(tensor));
  }
  rules.require_one_vocabulary(first);
  return cut_patterns(cuts);
}

std::vector<std::string> missing_meta_tensors(const Catalog& first, const Json& params) {
  constexpr std::uint64_t kMostLayers = 4096;
  std::set<std::string_view> names;
  std::uint64_t layers = 0;
  for (const TensorInfo& tensor : first.tensors) {
    names.insert(tensor.fqn);
    if (const auto layer = parse_layer_name(tensor.fqn))
      layers = std::max(layers, layer->layer + 1);
  }
  const Json told = params.is_object() ? params.value("n_layers", Json()) : Json();
  if (told.is_number_unsigned()) layers = std::max(layers, told.get<std::uint64_t>());
  std::vector<std::string> missing;
  const auto require = [&](std::string name) {
    if (!names.contains(name)) missing.push_back(std::move(name));
  };
  require(std::string(kEmbedding));
  for (std::uint64_t layer = 0; layer < std::min(layers, kMostLayers); ++layer) {
    for (const MetaTensor& tensor : kMetaLayers)
      require(fmt::format("layers.{}.{}", layer, tensor.name));
  }
  for (const char* name : {"norm.weight", "output.weight"}) require(name);
  return missing;
}

std::optional<std::string> find_wrong_meta_shape(const Catalog& whole, const Json& params) {
  SharedSizes sizes = told_sizes(params);
  for (const TensorInfo& tensor : whole.tensors) {
    const auto names = size_names(tensor.fqn);
    if (!names) continue;
    if (auto wrong = sizes.compare(tensor, *names)) return wrong;
  }
  return std::nullopt;
}

}  // namespace unishard::converters
