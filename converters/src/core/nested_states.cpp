#include "core/nested_states.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/format/catalog.hpp"
#include "unishard/format/error.hpp"

#include "core/key_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters {
namespace {

constexpr std::string_view kLevel = "--";
constexpr const char* kMark = "unishard.state";

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

/// Gives the tensors in a value the names of states.
class TreeMaker {
 public:
  explicit TreeMaker(std::string_view root) : root_(root) {}

  void mark(Json& value, const std::string& name) {
    if (value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i)
        mark(value[i], member_state(name, std::to_string(i)));
    } else if (value.is_object() && value.contains("$tensor")) {
      states.emplace_back(free_name(name), value["$tensor"].get<std::string>());
      value = state_mark(states.back().first);
    } else if (value.is_object() && !value.contains("$type")) {
      for (auto& [key, child] : value.items()) mark(child, member_state(name, key));
    } else if (value.is_object()) {
      mark_parts(value, name);
    }
  }
  std::vector<std::pair<std::string, std::string>> states;

 private:
  /// What has a "$type" has its members in these parts.
  void mark_parts(Json& value, const std::string& name) {
    for (const char* part : {"args", "state", "items"}) {
      if (value.contains(part)) mark(value[part], name);
    }
    if (!value.contains("pairs")) return;
    for (Json& pair : value["pairs"]) {
      const Json& key = pair.at(0);
      mark(pair.at(1), member_state(name, key_text(key)));
    }
  }

  /// Returns the name, or a numbered one where it is none, or is another's.
  std::string free_name(std::string name) {
    for (int number = 0; !is_state_name(name) || !used_.insert(name).second; ++number)
      name = member_state(root_, fmt::format("n{}", number));
    return name;
  }

  const std::string root_;
  std::unordered_set<std::string> used_;
};

using Members = std::unordered_map<std::string_view, const Json*>;

/// Puts the states to their places in a tree, and adds their names to `placed`.
void fill(Json& value, const Members& members, std::unordered_set<std::string>& placed) {
  if (const std::string* const name = marked_state(value)) {
    const auto found = members.find(*name);
    if (found != members.end()) placed.insert(*name);
    value = found == members.end() ? Json() : *found->second;
  } else if (value.is_structured()) {
    for (Json& child : value) fill(child, members, placed);
  }
}

}  // namespace

bool is_state_name(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

bool is_own_state_name(std::string_view text) {
  return is_state_name(text) && state_levels(std::string(text)).size() == 1;
}

Json state_mark(std::string_view name) { return {{kMark, name}}; }

const std::string* marked_state(const Json& value) {
  if (!value.is_object() || value.size() != 1 || !value.contains(kMark)) return nullptr;
  return value[kMark].get_ptr<const std::string*>();
}

bool has_state_marks(const Json& value) {
  return marked_state(value) != nullptr ||
         (value.is_structured() && std::ranges::any_of(value, has_state_marks));
}

StateTree tree_of(std::string_view name, Json value) {
  TreeMaker maker(name);
  maker.mark(value, std::string(name));
  return {std::move(value), std::move(maker.states)};
}

bool is_reserved_state(std::string_view name) {
  return name == state::kFp32 || name == state::kWeights || name == state::kBuffer ||
         name == kExtraState;
}

RenamedState rename_reserved_state(std::string_view name) {
  std::string other = fmt::format("state_{}", name);
  std::string note = fmt::format(
      "the optimizer's states {} are called {} here: the name means the model's own tensors",
      quote(name), quote(other));
  return {std::move(other), std::move(note)};
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
  Members all;
  for (const auto& [name, value] : members) all.emplace(name, &value);
  std::unordered_set<std::string> placed;
  Json::object_t filled;
  for (const auto& [name, value] : members) {
    Json tree = value;
    fill(tree, all, placed);
    filled.push_back({name, std::move(tree)});
  }
  Json nested = Json::object();
  for (const auto& [name, value] : filled) {
    if (placed.contains(name)) continue;
    if (!insert(nested, state_levels(name), value)) nested[name] = value;
  }
  return nested;
}

}  // namespace unishard::converters
