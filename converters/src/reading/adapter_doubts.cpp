#include "reading/adapter_doubts.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "core/model_tensors.hpp"
#include "reading/layer_doubts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <unordered_map>

namespace unishard::converters {
namespace {

/// The shapes of the model's tensors by name; second names have those of their tensors.
std::unordered_map<std::string, Shape> shapes_of(const Catalog& catalog) {
  std::unordered_map<std::string, Shape> shapes;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_of_model(tensor)) shapes.emplace(tensor.fqn, tensor.shape);
  }
  for (const Alias& alias : catalog.aliases) {
    if (const auto found = shapes.find(alias.target); found != shapes.end())
      shapes.emplace(alias.fqn, Shape(found->second));
  }
  return shapes;
}

/// A has a row, and B a column, for each rank. Biases have no ranks.
void doubt_pairs(const Catalog& catalog, std::vector<std::string>& lines) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kPairs = {
      {{".lora_A.", ".lora_B."}, {".lora_embedding_A", ".lora_embedding_B"}}};
  const std::unordered_map<std::string, Shape> shapes = shapes_of(catalog);
  std::vector<std::string> alone, unfit;
  const auto look = [&](const TensorInfo& tensor, std::string_view own, std::string_view other) {
    const std::size_t at = tensor.fqn.find(own);
    if (at == std::string::npos || tensor.fqn.ends_with(".bias")) return;
    std::string partner = tensor.fqn;
    const auto found = shapes.find(partner.replace(at, own.size(), other));
    if (found == shapes.end()) return alone.push_back(tensor.fqn);
    const bool is_a = own[own.find_last_of("AB")] == 'A';
    if (is_a && tensor.shape.size() >= 2 && found->second.size() >= 2 &&
        tensor.shape[0] != found->second[1])
      unfit.push_back(tensor.fqn);
  };
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!is_of_model(tensor)) continue;
    for (const auto& [a, b] : kPairs) {
      look(tensor, a, b);
      look(tensor, b, a);
    }
  }
  if (!alone.empty())
    lines.push_back(fmt::format("{} matrices of the adapter lack the one that belongs to them: {}",
                                alone.size(), first_names(alone)));
  if (!unfit.empty())
    lines.push_back(
        fmt::format("matrices of the adapter have another rank than the ones that "
                    "belong to them: {}",
                    first_names(unfit)));
}

/// Returns the names in a list of the configuration. What is no list is a pattern, or stands for
/// all modules.
std::vector<std::string> listed(const SortedJson& config, const char* key) {
  std::vector<std::string> names;
  const auto found = config.find(key);
  if (found == config.end() || !found->is_array()) return names;
  for (const SortedJson& name : *found) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  return names;
}

/// PEFT lists the usual names of heads, of which a model has one.
void doubt_modules(const SortedJson& config, const Catalog& catalog,
                   std::vector<std::string>& lines) {
  const auto is_missing = [&](const std::string& module) {
    return std::ranges::none_of(catalog.tensors, [&](const TensorInfo& tensor) {
      return ("." + tensor.fqn + ".").find("." + module + ".") != std::string::npos;
    });
  };
  std::vector<std::string> missing = listed(config, "target_modules");
  std::erase_if(missing, std::not_fn(is_missing));
  const std::vector<std::string> heads = listed(config, "modules_to_save");
  if (std::ranges::all_of(heads, is_missing))
    missing.insert(missing.end(), heads.begin(), heads.end());
  if (!missing.empty())
    lines.push_back(fmt::format("adapter_config.json lists modules of which there is no tensor: {}",
                                first_names(missing)));
}

/// The ranks that PEFT's configuration gives the matrices of an adapter.
std::vector<std::uint64_t> configured_ranks(const SortedJson& config) {
  std::vector<std::uint64_t> ranks;
  const auto add = [&](const SortedJson& rank) {
    if (rank.is_number_unsigned() && rank != 0u) ranks.push_back(rank.get<std::uint64_t>());
  };
  if (const auto rank = config.find("r"); rank != config.end()) add(*rank);
  const auto pattern = config.find("rank_pattern");
  if (!ranks.empty() && pattern != config.end() && pattern->is_object())
    std::ranges::for_each(*pattern, add);
  return ranks;
}

/// A matrix A of LoRA has a row for each rank, and one of fused experts for each rank of each.
void doubt_ranks(const SortedJson& config, const Catalog& catalog,
                 std::vector<std::string>& lines) {
  if (config.value("peft_type", SortedJson()) != "LORA") return;
  const std::vector<std::uint64_t> ranks = configured_ranks(config);
  const bool has_experts = !config.value("target_parameters", SortedJson()).is_null();
  std::vector<std::string> unfit;
  for (const TensorInfo& tensor : catalog.tensors) {
    const bool is_a = tensor.fqn.find(".lora_A.") != std::string::npos ||
                      tensor.fqn.find(".lora_embedding_A") != std::string::npos;
    if (!is_of_model(tensor) || !is_a || tensor.shape.size() < 2) continue;
    const bool fits = std::ranges::any_of(ranks, [&](std::uint64_t rank) {
      return tensor.shape[0] == rank || (has_experts && tensor.shape[0] % rank == 0);
    });
    if (!fits) unfit.push_back(tensor.fqn);
  }
  if (!ranks.empty() && !unfit.empty())
    lines.push_back(
        fmt::format("{} matrices of the adapter have another rank than adapter_config.json "
                    "says (r, rank_pattern): {}",
                    unfit.size(), first_names(unfit)));
}

/// Whether the adapter is for all layers.
bool has_all_layers(const SortedJson& config) {
  const auto layers = config.find("layers_to_transform");
  const auto modules = config.find("target_modules");
  return (layers == config.end() || layers->is_null()) && modules != config.end() &&
         modules->is_array();
}

}  // namespace

std::vector<std::string> doubts_about_adapter(const std::optional<SortedJson>& config,
                                              const Catalog& catalog) {
  std::vector<std::string> lines;
  doubt_pairs(catalog, lines);
  if (!config) return lines;
  doubt_modules(*config, catalog, lines);
  doubt_ranks(*config, catalog, lines);
  if (has_all_layers(*config)) {
    for (std::string& line : doubts_about_adapted_layers(catalog)) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace unishard::converters
