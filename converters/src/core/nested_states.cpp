#include "core/nested_states.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unishard::converters {
namespace {

constexpr std::string_view kLevel = "--";

/// Returns false, and changes nothing, when the place is taken.
bool insert(Json& object, const std::vector<std::string>& levels, const Json& value) {
  Json* at = &object;
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    if (!at->contains(levels[i])) break;
    at = &(*at)[levels[i]];
    if (!at->is_object() || at->contains("$tensor") || at->contains("$type")) return false;
  }
  at = &object;
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    Json& child = (*at)[levels[i]];
    if (child.is_null()) child = Json::object();
    at = &child;
  }
  if (at->contains(levels.back())) return false;
  (*at)[levels.back()] = value;
  return true;
}

}  // namespace

bool is_state_name(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

std::string member_state(std::string_view state, std::string_view member) {
  return fmt::format("{}{}{}", state, kLevel, member);
}

std::vector<std::string> state_levels(const std::string& state) {
  std::vector<std::string> levels;
  for (std::size_t begin = 0;;) {
    const std::size_t end = state.find(kLevel, begin);
    if (end == std::string::npos || end == begin || end + kLevel.size() == state.size()) {
      levels.push_back(state.substr(begin));
      return levels;
    }
    levels.push_back(state.substr(begin, end - begin));
    begin = end + kLevel.size();
  }
}

std::string dotted_state(const std::string& state) {
  return fmt::format("{}", fmt::join(state_levels(state), "."));
}

Json nest_states(const Json::object_t& members) {
  Json nested = Json::object();
  for (const auto& [name, value] : members) {
    if (!insert(nested, state_levels(name), value)) nested[name] = value;
  }
  return nested;
}

}  // namespace unishard::converters
