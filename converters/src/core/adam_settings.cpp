#include "core/adam_settings.hpp"

#include "unishard/converters/extra_state.hpp"

#include "core/model_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

namespace unishard::converters {

std::string note_assumed_settings(const Json& group, std::size_t number) {
  constexpr std::array<const char*, 4> kDeciding = {"lr", "betas", "eps", "weight_decay"};
  std::vector<std::string> lacking;
  for (const char* key : kDeciding) {
    if (!group.contains(key))
      lacking.push_back(fmt::format("{} ({})", key, adamw_defaults()[key].dump()));
  }
  if (lacking.empty() || 2 * lacking.size() > kDeciding.size()) return {};
  return fmt::format(
      "settings that parameter group {} lacks; torch's defaults are in their places: {}", number,
      fmt::join(lacking, ", "));
}

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
