#include "reading/parameter_shape.hpp"

#include "core/nested_states.hpp"

#include <algorithm>

namespace unishard::converters {

Shape parameter_shape(const std::map<std::string, Shape>& states) {
  for (const auto& [name, shape] : states) {
    const std::string last = state_levels(name).back();
    if (last == "exp_avg" || last == "momentum_buffer" || last == "state1") return shape;
  }
  const auto row = states.find("exp_avg_sq_row"), column = states.find("exp_avg_sq_col");
  Shape shape;
  if (row != states.end() && column != states.end() && !column->second.empty()) {
    shape = row->second;
    shape.push_back(column->second.back());
    return shape;
  }
  const auto is_whole = [](const auto& state) { return state_levels(state.first).size() == 1; };
  const bool has_whole = std::ranges::any_of(states, is_whole);
  for (const auto& [name, other] : states) {
    if (has_whole && state_levels(name).size() > 1) continue;  // a member of a list or dict
    if (other.size() > shape.size()) shape = other;
    for (std::size_t i = 0; other.size() == shape.size() && i < shape.size(); ++i)
      shape[i] = std::max(shape[i], other[i]);
  }
  return shape;
}

}  // namespace unishard::converters
