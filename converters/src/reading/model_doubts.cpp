#include "reading/model_doubts.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/text.hpp"

#include "core/model_tensors.hpp"
#include "core/python_json.hpp"
#include "reading/adapter_doubts.hpp"
#include "reading/layer_doubts.hpp"
#include "reading/model_type.hpp"
#include "reading/required_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace unishard::converters {
namespace {

std::optional<SortedJson> read_object(Storage& storage, const Path& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  if (storage.kind(path) != EntryKind::File) return std::nullopt;
  try {
    SortedJson json =
        parse_sorted_json(strict_json(read_text(storage, path, kMostBytes)), path.string());
    if (json.is_object()) return json;
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

/// Returns what config.json says under a key, for a model of several kinds also in its part for
/// text.
std::optional<SortedJson> value_of(const SortedJson& config, const char* key) {
  if (const auto found = config.find(key); found != config.end()) return *found;
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object() || !text->contains(key)) return std::nullopt;
  return (*text)[key];
}

bool is_causal_model(const SortedJson& config) {
  const auto found = config.find("architectures");
  if (found == config.end() || !found->is_array() || found->empty()) return false;
  const SortedJson& first = found->front();
  return first.is_string() && (first.get<std::string>().ends_with("ForCausalLM") ||
                               first.get<std::string>().ends_with("LMHeadModel"));
}

/// Whether the shapes of the tensors are those that config.json describes. Quantized ones differ.
bool has_described_shapes(const SortedJson& config) {
  return is_causal_model(config) && !config.contains("quantization_config");
}

/// Embeddings, norms and projections of a language model have an axis of its hidden size.
void doubt_width(const SortedJson& config, const Catalog& catalog,
                 std::vector<std::string>& lines) {
  const auto width = value_of(config, "hidden_size");
  if (!has_described_shapes(config) || !width || !width->is_number_unsigned()) return;
  const auto has_axis = [size = width->get<std::uint64_t>()](const TensorInfo& tensor) {
    return std::ranges::count(tensor.shape, size) > 0;
  };
  bool has_tensors = false;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!is_of_model(tensor)) continue;
    if (has_axis(tensor)) return;
    has_tensors = true;
  }
  if (has_tensors)
    lines.push_back(
        fmt::format("config.json says a hidden_size of {}, and no tensor has an axis of that size: "
                    "it is of another model",
                    width->dump()));
}

/// A causal language model has a matrix with a row for each token, and a second one where
/// config.json says that its output has weights of its own. Quantized ones have other shapes.
void doubt_vocabulary(const SortedJson& config, const Catalog& catalog,
                      std::vector<std::string>& lines) {
  if (!has_described_shapes(config)) return;
  const auto tokens = value_of(config, "vocab_size");
  const auto tied = value_of(config, "tie_word_embeddings");
  if (!tokens || !tokens->is_number_unsigned()) return;
  const auto has_rows = [rows = tokens->get<std::uint64_t>()](const TensorInfo& tensor) {
    return tensor.shape.size() == 2 && std::max(tensor.shape[0], tensor.shape[1]) >= rows;
  };
  std::unordered_set<std::string> matrices;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_of_model(tensor) && has_rows(tensor)) matrices.insert(tensor.fqn);
  }
  for (const Alias& alias : catalog.aliases) {
    if (matrices.contains(alias.target)) matrices.insert(alias.fqn);
  }
  const std::size_t wanted = tied && *tied == false ? 2 : 1;
  if (matrices.size() >= wanted) return;
  lines.push_back(fmt::format(
      "config.json says a vocabulary of {} tokens{}, and {} with so many rows: {} may be missing",
      tokens->dump(), wanted == 2 ? " and an output with weights of its own" : "",
      matrices.empty() ? "there is no matrix"
                       : fmt::format("{} is the only matrix", quote(*matrices.begin())),
      matrices.empty() ? "the embedding" : "the embedding or the output"));
}

void doubt_total_size(Storage& storage, const Path& folder, const Catalog& catalog,
                      std::vector<std::string>& lines) {
  constexpr std::array<const char*, 2> kIndices = {"model.safetensors.index.json",
                                                   "pytorch_model.bin.index.json"};
  if (!catalog.aliases.empty()) return;  // some programs count them twice
  for (const char* name : kIndices) {
    const auto index = read_object(storage, folder / name);
    if (!index || !index->contains("metadata") || !(*index)["metadata"].is_object()) continue;
    const auto total = (*index)["metadata"].find("total_size");
    if (total == (*index)["metadata"].end() || !total->is_number()) continue;
    std::uint64_t bytes = 0;
    for (const TensorInfo& tensor : catalog.tensors) {
      if (is_of_model(tensor)) bytes += tensor.bytes();
    }
    if (static_cast<double>(bytes) != total->get<double>())
      lines.push_back(fmt::format(
          "{} says that the tensors have {} bytes, and they have {}: a file may be of another save",
          name, total->dump(), bytes));
    return;
  }
}

}  // namespace

std::vector<std::string> doubts_about_model(Storage& storage, const Path& folder,
                                            const Catalog& catalog) {
  std::vector<std::string> lines;
  if (const auto config = read_object(storage, folder / "config.json")) {
    lines = doubts_about_layers(*config, catalog);
    doubt_width(*config, catalog, lines);
    doubt_vocabulary(*config, catalog, lines);
    if (storage.kind(folder / "adapter_config.json") != EntryKind::File)  // an adapter has less
      for (std::string& line : doubts_about_required(model_type_of(config->dump()), catalog))
        lines.push_back(std::move(line));
  }
  doubt_total_size(storage, folder, catalog, lines);
  for (std::string& line :
       doubts_about_adapter(read_object(storage, folder / "adapter_config.json"), catalog))
    lines.push_back(std::move(line));
  return lines;
}

}  // namespace unishard::converters
