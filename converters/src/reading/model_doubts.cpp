#include "reading/model_doubts.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/text.hpp"

#include "core/model_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>

namespace unishard::converters {
namespace {

/// The names in each layer, by what is before the layers' numbers.
using Layers = std::map<std::string, std::map<std::uint64_t, std::set<std::string>>>;

std::optional<SortedJson> read_object(Storage& storage, const Path& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  if (storage.kind(path) != EntryKind::File) return std::nullopt;
  try {
    SortedJson json = parse_sorted_json(read_text(storage, path, kMostBytes), path.string());
    if (json.is_object()) return json;
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

/// Adds the first number in a name: "h.3.mlp.0.weight" is of layer 3 of "h".
void add_layer(std::string_view name, Layers& layers) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    std::uint64_t number = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error == std::errc() && rest == part.data() + part.size() && begin > 0) {
      layers[std::string(name.substr(0, begin - 1))][number].emplace(name.substr(end));
      return;
    }
    begin = end + 1;
  }
}

Layers layers_of(const Catalog& catalog) {
  Layers layers;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_of_model(tensor)) add_layer(tensor.fqn, layers);
  }
  for (const Alias& alias : catalog.aliases) add_layer(alias.fqn, layers);
  return layers;
}

std::optional<std::uint64_t> number_of_layers(const SortedJson& config) {
  constexpr std::array<const char*, 4> kKeys = {"num_hidden_layers", "n_layer", "num_layers",
                                                "n_layers"};
  // ALBERT's layers share weights, and EfficientNet counts parts of blocks.
  if (config.contains("num_hidden_groups") || config.contains("num_block_repeats"))
    return std::nullopt;
  for (const char* key : kKeys) {
    const auto found = config.find(key);
    if (found != config.end() && found->is_number_unsigned()) return found->get<std::uint64_t>();
  }
  return std::nullopt;
}

void doubt_layers(const Layers& layers, std::optional<std::uint64_t> wanted,
                  std::vector<std::string>& lines) {
  const auto most =
      std::ranges::max_element(layers, {}, [](const auto& each) { return each.second.size(); });
  if (most == layers.end()) return;
  if (wanted && *wanted > most->second.size())
    lines.push_back(fmt::format(
        "config.json says {} layers, and there are tensors of {} ({}): a file may be missing",
        *wanted, most->second.size(), quote(most->first)));
}

/// Names what one of the layers that config.json counts lacks, and more than half of them have,
/// where it has nothing of its own, as a layer of another kind has. The first and the last layer
/// differ in some models. Only tensors of modules in a layer count.
void doubt_uneven_layers(const Layers& layers, std::optional<std::uint64_t> wanted,
                         std::vector<std::string>& lines) {
  std::vector<std::string> missing;
  for (const auto& [before, numbered] : layers) {
    const std::size_t all = numbered.size();
    if (!wanted || all != *wanted) continue;
    std::map<std::string_view, std::size_t> counts;
    for (const auto& [number, names] : numbered) {
      for (const std::string& name : names) {
        if (name.find('.', 1) != std::string::npos) ++counts[name];
      }
    }
    const auto is_usual = [&counts, all](std::string_view name) {
      const auto found = counts.find(name);
      return found != counts.end() && 2 * found->second > all;
    };
    for (const auto& [number, names] : numbered) {
      const bool is_at_end =
          number == numbered.begin()->first || number == numbered.rbegin()->first;
      if (is_at_end || !std::ranges::all_of(names, is_usual)) continue;
      for (const auto& [name, count] : counts) {
        if (is_usual(name) && !names.contains(std::string(name)))
          missing.push_back(fmt::format("{}.{}{}", before, number, name));
      }
    }
  }
  if (!missing.empty())
    lines.push_back(
        fmt::format("layers lack tensors that most layers have: {}", first_names(missing)));
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

void doubt_adapters(const Catalog& catalog, std::vector<std::string>& lines) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kPairs = {
      {{".lora_A.", ".lora_B."}, {".lora_embedding_A", ".lora_embedding_B"}}};
  std::unordered_set<std::string> names;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_of_model(tensor)) names.insert(tensor.fqn);
  }
  for (const Alias& alias : catalog.aliases) names.insert(alias.fqn);
  std::vector<std::string> alone;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!is_of_model(tensor)) continue;
    for (const auto& [a, b] : kPairs) {
      for (const auto& [own, other] : {std::pair(a, b), std::pair(b, a)}) {
        const std::size_t at = tensor.fqn.find(own);
        if (at == std::string::npos || tensor.fqn.ends_with(".bias")) continue;
        std::string partner = tensor.fqn;
        if (!names.contains(partner.replace(at, own.size(), other))) alone.push_back(tensor.fqn);
      }
    }
  }
  if (!alone.empty())
    lines.push_back(fmt::format("{} matrices of the adapter lack the one that belongs to them: {}",
                                alone.size(), first_names(alone)));
}

}  // namespace

std::vector<std::string> doubts_about_model(Storage& storage, const Path& folder,
                                            const Catalog& catalog) {
  std::vector<std::string> lines;
  const Layers layers = layers_of(catalog);
  const auto config = read_object(storage, folder / "config.json");
  const auto wanted = config ? number_of_layers(*config) : std::nullopt;
  doubt_layers(layers, wanted, lines);
  doubt_uneven_layers(layers, wanted, lines);
  doubt_total_size(storage, folder, catalog, lines);
  doubt_adapters(catalog, lines);
  return lines;
}

}  // namespace unishard::converters
