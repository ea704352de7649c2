#include "core/adam_settings.hpp"

#include "unishard/converters/extra_state.hpp"

#include "core/model_tensors.hpp"

#include <algorithm>

namespace unishard::converters {

AdamGroups::AdamGroups(const Catalog& catalog) {
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_of_model(tensor) || tensor.state == kExtraState) continue;
    States& states = states_[tensor.fqn];
    if (tensor.state == state::kExpAvg || tensor.state == state::kExpAvgSq) {
      ++states.moments;
    } else if (!is_state_of_adam(tensor.state) && tensor.state != "step") {
      states.has_others = true;
    }
  }
  are_all_adams_ = !states_.empty() && std::ranges::all_of(states_, [](const auto& each) {
    return each.second.are_adams();
  });
}

bool AdamGroups::is_adam(std::span<const std::string> fqns) const {
  bool has_states = false;
  for (const std::string& fqn : fqns) {
    const auto found = states_.find(fqn);
    if (found == states_.end()) continue;
    if (!found->second.are_adams()) return false;
    has_states = true;
  }
  return has_states || are_all_adams_;
}

}  // namespace unishard::converters
