#include "unishard/converters/optimizer_scalars.hpp"

#include "core/embedded_catalog.hpp"

#include <algorithm>
#include <array>

namespace unishard::converters {
namespace {

constexpr std::string_view kStep = "step";

/// Returns the values by state, or null. A client state with odd keys is a list of pairs.
template <class AnyJson>
AnyJson* find_states(AnyJson& client_state) {
  if (!client_state.is_object()) return nullptr;
  AnyJson* found = nullptr;
  if (const auto at = client_state.find(kOptimizerScalars); at != client_state.end()) {
    found = &*at;
  } else if (const auto pairs = client_state.find("pairs"); pairs != client_state.end()) {
    for (auto& pair : *pairs) {
      if (pair.is_array() && pair.size() == 2 && pair[0] == kOptimizerScalars) found = &pair[1];
    }
  }
  return found != nullptr && found->is_object() ? found : nullptr;
}

bool has_more_than_sgd(const TensorInfo& tensor) {
  constexpr std::array<std::string_view, 5> kOthers = {
      state::kFp32, state::kWeights, state::kBuffer, kExtraState, "momentum_buffer"};
  return std::ranges::count(kOthers, tensor.state) == 0;
}

}  // namespace

OptimizerScalars::OptimizerScalars(const Catalog& catalog)
    : step_(catalog.step), counts_(std::ranges::any_of(catalog.tensors, has_more_than_sgd)) {
  const Json* const states = find_states(catalog.client_state);
  if (states == nullptr) return;
  for (const auto& [state, by_fqn] : states->items()) {
    if (!by_fqn.is_object()) continue;
    const bool is_step = state == kStep;
    if (is_step) steps_ = &by_fqn;
    for (const auto& [fqn, value] : by_fqn.items()) {
      const auto [found, is_new] = values_.try_emplace(fqn);
      if (is_new) fqns_.push_back(fqn);
      if (is_step) {
        step_of_.emplace(found->first, &value);
      } else {
        found->second.emplace_back(state, &value);
      }
    }
  }
}

Json OptimizerScalars::step(const std::string& fqn) const {
  if (const auto found = step_of_.find(fqn); found != step_of_.end())
    return found->second->is_number() ? *found->second : Json();
  const bool counts = steps_ == nullptr ? counts_ : !steps_->empty();
  if (!counts) return {};
  return static_cast<double>(step_);
}

std::span<const OptimizerScalars::Value> OptimizerScalars::of(const std::string& fqn) const {
  const auto found = values_.find(fqn);
  return found == values_.end() ? std::span<const Value>() : found->second;
}

Json rename_optimizer_scalars(Json client_state,
                              const std::function<std::string(const std::string&)>& rename) {
  Json* const states = find_states(client_state);
  if (states == nullptr) return client_state;
  for (Json& by_fqn : *states) {
    if (!by_fqn.is_object()) continue;
    Json::object_t renamed;
    for (const auto& [fqn, value] : by_fqn.items()) {
      if (std::string name = rename(fqn); !name.empty()) renamed.push_back({name, value});
    }
    by_fqn = Json(std::move(renamed));
  }
  return client_state;
}

}  // namespace unishard::converters
