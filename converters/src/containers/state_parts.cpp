#include "containers/state_parts.hpp"

#include "unishard/format/error.hpp"

#include "containers/pickle_json.hpp"
#include "core/nested_states.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace unishard::converters::torch {
namespace {

/// Returns whether each member of a dict can be a state of its own.
bool has_states_as_members(const std::string& state, const Json& value) {
  constexpr std::size_t kMostLevels = 4;
  if (!value.is_object() || value.contains("$type") || state_levels(state).size() >= kMostLevels)
    return false;
  for (const auto& [key, member] : value.items()) {
    if (!is_own_state_name(key) || !is_state_name(member_state(state, key))) return false;
  }
  return true;
}

/// Returns why a state with tensors cannot be kept; empty when it can.
std::string reason_against(const std::string& state, const Json& value) {
  constexpr std::size_t kLongest =
      48;  // what is longer leaves no room for the names of the tensors
  if (state.size() > kLongest) return "its key";
  std::vector<std::string> refused;
  if (with_all_tensors(value, {}, refused) && refused.empty()) return {};
  if (value.is_object() && value.value("$type", Json()) == "object")
    return fmt::format("an object of the class {} with tensors",
                       unishard::quote(value.value("name", std::string())));
  return "tensors in what cannot be written as data";
}

void take_apart(const std::string& state, const Json& value, StateParts& parts) {
  if (value.is_object() && value.contains("$tensor")) {
    parts.tensors.emplace_back(state, value["$tensor"].get<std::string>());
  } else if (tensors_in(value).empty()) {
    parts.values.emplace_back(state, value);
  } else if (has_states_as_members(state, value)) {
    for (const auto& [key, member] : value.items())
      take_apart(member_state(state, key), member, parts);
  } else if (std::string why = reason_against(state, value); !why.empty()) {
    parts.lost.push_back({state, std::move(why), value});
  } else {
    StateTree tree = tree_of(state, value);
    std::ranges::move(tree.states, std::back_inserter(parts.tensors));
    parts.values.emplace_back(state, std::move(tree.value));
  }
}

}  // namespace

StateParts parts_of_state(const std::string& name, const Json& value) {
  StateParts parts;
  take_apart(name, value, parts);
  return parts;
}

}  // namespace unishard::converters::torch
