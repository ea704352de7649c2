#include "reading/adapter_doubts.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "core/model_tensors.hpp"
#include "reading/layer_doubts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

bool has_tensor(const Catalog& catalog, const std::function<bool(const std::string&)>& is_wanted) {
  return std::ranges::any_of(
      catalog.tensors, [&](const TensorInfo& tensor) { return is_wanted("." + tensor.fqn + "."); });
}

/// Whether PEFT itself lists the module for a kind of task, by the usual names of heads, of which a
/// model has one.
bool is_usual_head(std::string_view module) {
  return module == "classifier" || module == "score" || module == "qa_outputs";
}

/// Returns the modules that were saved whole and have no tensor. PEFT finds them by the end of
/// their names. Of modules that are tied with each other one may stand for the others.
std::vector<std::string> missing_heads(const SortedJson& config, const Catalog& catalog) {
  std::vector<std::string> heads = listed(config, "modules_to_save");
  const std::size_t count = heads.size();
  std::vector<std::string> found;
  std::erase_if(heads, [&](const std::string& module) {
    const bool is_there = has_tensor(catalog, [&](const std::string& name) {
      return name.find(module + ".") != std::string::npos;
    });
    if (is_there) found.push_back(module);
    return is_there;
  });
  if (config.value("ensure_weight_tying", SortedJson()) == true && heads.size() < count) return {};
  if (std::ranges::any_of(found, is_usual_head)) std::erase_if(heads, is_usual_head);
  return heads;
}

/// Returns the embeddings of which tokens are trained and have no tensor. One that is tied with
/// another has the same tokens, and no tensor of its own.
std::vector<std::string> missing_tokens(const SortedJson& config, const Catalog& catalog) {
  const auto has_tokens = [&](const std::string& module) {
    return has_tensor(catalog, [&](const std::string& name) {
      return name.find(module + ".") != std::string::npos &&
             name.find("trainable_tokens_delta.") != std::string::npos;
    });
  };
  const SortedJson tokens = config.value("trainable_token_indices", SortedJson());
  if (tokens.is_array() && !tokens.empty() && !has_tokens(""))
    return {"embeddings (trainable_token_indices)"};
  std::vector<std::string> missing;
  if (!tokens.is_object()) return missing;
  for (const auto& module : tokens.items()) {
    bool is_there = false;
    for (const auto& other : tokens.items())
      is_there = is_there || (other.value() == module.value() && has_tokens(other.key()));
    if (!is_there) missing.push_back(fmt::format("{} (trainable_token_indices)", module.key()));
  }
  return missing;
}

void doubt_modules(const SortedJson& config, const Catalog& catalog,
                   std::vector<std::string>& lines) {
  std::vector<std::string> missing = listed(config, "target_modules");
  std::erase_if(missing, [&](const std::string& module) {
    return has_tensor(catalog, [&](const std::string& name) {
      return name.find("." + module + ".") != std::string::npos;
    });
  });
  for (std::string& module : missing_heads(config, catalog)) missing.push_back(std::move(module));
  for (std::string& module : missing_tokens(config, catalog)) missing.push_back(std::move(module));
  if (!missing.empty())
    lines.push_back(fmt::format("adapter_config.json lists modules of which there is no tensor: {}",
                                first_names(missing)));
}

/// A module that was saved whole has a weight where it has a bias. Others may have a bias alone,
/// which the setting `bias` trains.
void doubt_weights(const SortedJson& config, const Catalog& catalog,
                   std::vector<std::string>& lines) {
  constexpr std::string_view kBias = ".bias";
  const std::vector<std::string> heads = listed(config, "modules_to_save");
  const std::unordered_map<std::string, Shape> shapes = shapes_of(catalog);
  std::vector<std::string> alone;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!is_of_model(tensor) || !tensor.fqn.ends_with(kBias)) continue;
    const std::string module = tensor.fqn.substr(0, tensor.fqn.size() - kBias.size());
    const bool is_head = std::ranges::any_of(heads, [&](const std::string& head) {
      return (module + ".").find(head + ".") != std::string::npos;
    });
    if (is_head && !shapes.contains(module + ".weight")) alone.push_back(tensor.fqn);
  }
  if (!alone.empty())
    lines.push_back(
        fmt::format("modules that adapter_config.json lists (modules_to_save) have a bias and no "
                    "weight: {}",
                    first_names(alone)));
}

/// The matrices that all modules share are in the file where the configuration says so.
void doubt_projections(const SortedJson& config, const Catalog& catalog,
                       std::vector<std::string>& lines) {
  const SortedJson type = config.value("peft_type", SortedJson());
  if (type != "VERA" && type != "RANDLORA") return;
  if (config.value("save_projection", SortedJson()) != true) return;
  std::vector<std::string> missing;
  for (const char* end : {"_A", "_B"}) {
    const std::string name = std::string(type == "VERA" ? "vera" : "randlora") + end;
    if (!has_tensor(catalog, [&](const std::string& each) {
          return each.find("." + name + ".") != std::string::npos;
        }))
      missing.push_back(name);
  }
  if (!missing.empty())
    lines.push_back(fmt::format(
        "adapter_config.json says that the file has the projections (save_projection), and there "
        "is no {}",
        fmt::join(missing, ", ")));
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
  doubt_weights(*config, catalog, lines);
  doubt_projections(*config, catalog, lines);
  doubt_ranks(*config, catalog, lines);
  if (has_all_layers(*config)) {
    for (std::string& line : doubts_about_adapted_layers(catalog)) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace unishard::converters
