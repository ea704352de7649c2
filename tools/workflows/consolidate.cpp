#include "workflows/consolidate.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/version.hpp"

#include <fmt/format.h>

#include <unordered_map>

namespace unishard::tools {
namespace {

/// Smaller is preferred; nullopt for optimizer states.
std::optional<int> preference(const TensorInfo& tensor) {
  if (tensor.state == state::kFp32) return 0;
  if (tensor.state == state::kWeights) return 1;
  if (tensor.state == state::kBuffer) return 2;
  return std::nullopt;
}

DType target_dtype(const TensorInfo& tensor, const std::optional<DType>& wanted) {
  const Kind kind = info(tensor.dtype).kind;
  if (kind != Kind::Float) return tensor.dtype;
  if (wanted) return *wanted;
  return tensor.frozen ? tensor.dtype : DType::Float32;
}

}  // namespace

std::vector<std::size_t> model_tensors(const Catalog& catalog) {
  std::vector<std::size_t> chosen;
  std::unordered_map<std::string_view, std::size_t> place;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    const std::optional<int> rank = preference(tensor);
    if (!rank) continue;
    const auto [found, is_new] = place.emplace(tensor.fqn, chosen.size());
    if (is_new) {
      chosen.push_back(i);
    } else if (*rank < *preference(catalog.tensors[chosen[found->second]])) {
      chosen[found->second] = i;
    }
  }
  return chosen;
}

ConsolidatePlan plan_consolidate(const converters::Source& source,
                                 const ConsolidateOptions& options) {
  const Catalog& catalog = source.catalog();
  ConsolidatePlan plan;
  plan.target.step = catalog.step;
  for (const std::size_t index : model_tensors(catalog)) {
    const TensorInfo& from = catalog.tensors[index];
    if (from.frozen && options.exclude_frozen) {
      ++plan.frozen_left_out;
      continue;
    }
    TensorInfo to;
    to.fqn = from.fqn;
    to.state = state::kWeights;
    to.dtype = target_dtype(from, options.dtype);
    to.shape = from.shape;
    plan.target.tensors.push_back(std::move(to));
    plan.tensor_map.push_back(index);
  }
  if (plan.target.tensors.empty()) {
    raise(ErrorCode::Mismatch, "there is no parameter to write");
  }
  plan.target.aliases = catalog.aliases;
  plan.metadata = {{"unishard.version", std::string(kLibraryVersion)},
                   {"unishard.source.format", source.format()},
                   {"unishard.source.step", std::to_string(catalog.step)}};
  if (const auto digest = identity(catalog)) {
    plan.metadata.emplace_back("unishard.source.identity", *digest);
  }
  for (const Alias& alias : catalog.aliases) plan.metadata.emplace_back(alias.fqn, alias.target);
  return plan;
}

}  // namespace unishard::tools
