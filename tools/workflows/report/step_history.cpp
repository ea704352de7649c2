#include "workflows/report/step_history.hpp"

#include <cmath>

namespace unishard::tools {

StepHistory::StepHistory(const Catalog& catalog) : groups_(catalog) {
  std::unordered_map<std::string, std::size_t> state_numbers;
  for (const TensorInfo& tensor : catalog.tensors) {
    const auto [state, is_new] = state_numbers.emplace(tensor.state, states_.size());
    if (is_new) states_.push_back(tensor.state);
    number_.emplace(tensor.label(), places_.size());
    places_.push_back({groups_.group_of(tensor.fqn), state->second});
  }
}

void StepHistory::add(const Catalog& catalog) {
  auto& measured = added_.emplace_back(places_.size());
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!tensor.stats || tensor.stats->count == 0) continue;
    const auto found = number_.find(tensor.label());
    if (found == number_.end()) continue;
    measured[found->second] = {std::sqrt(tensor.stats->sum_squares),
                               tensor.stats->nan_count + tensor.stats->inf_count};
  }
}

std::vector<std::vector<std::vector<HistoryPoint>>> StepHistory::points(
    const std::vector<std::size_t>& order) const {
  std::vector<std::vector<std::vector<HistoryPoint>>> out;
  const std::vector<Measured>* before = nullptr;
  for (const std::size_t index : order) {
    const std::vector<Measured>& now = added_.at(index);
    auto& rows = out.emplace_back(groups().size(), std::vector<HistoryPoint>(states_.size()));
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (now[i].norm < 0) continue;
      HistoryPoint& point = rows[places_[i].group][places_[i].state];
      point.norm = std::hypot(point.norm, now[i].norm);
      point.bad += now[i].bad;
      ++point.tensors;
      if (before == nullptr || (*before)[i].norm < 0) continue;
      point.least_change = std::hypot(point.least_change, now[i].norm - (*before)[i].norm);
      ++point.changed_tensors;
    }
    before = &now;
  }
  return out;
}

}  // namespace unishard::tools
