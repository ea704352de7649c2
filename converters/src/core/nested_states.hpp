#pragma once
// A state of an optimizer may be a dict of tensors and values, for example the 8-bit moments of
// bitsandbytes with their scales. A catalog has one state for each member, whose name is
// "<state>--<member>"; the files of torch have the dict. A state of another form that holds tensors
// (a list, a tuple, a dict with numbers as keys) is a tree: the catalog has a state for each tensor
// in it, and the tree itself as a value of the parameter, with {"unishard.state": name} for each of
// them. Thread safety: pure functions.
#include "unishard/format/json.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::converters {

/// Returns true for the name of a state that a catalog can hold.
bool is_state_name(std::string_view text);
/// Returns true for a key of an optimizer's file that is the name of one state: no member's name.
bool is_own_state_name(std::string_view text);

/// Returns true for the name of a state by which a catalog calls tensors of the model or values.
bool is_reserved_state(std::string_view name);
struct RenamedState {
  std::string name, note;
};
/// Returns the name that an optimizer's state with a reserved name gets, and a note that says so.
RenamedState rename_reserved_state(std::string_view name);
/// Returns the name of a member of a dict.
std::string member_state(std::string_view state, std::string_view member);
/// Returns the names on the way to a state: {"a", "b"} for "a--b", one name for every other state.
std::vector<std::string> state_levels(const std::string& state);
/// Returns the levels of a state, joined by dots.
std::string dotted_state(const std::string& state);

/// Returns {"unishard.state": name}, which stands for a state in a tree.
Json state_mark(std::string_view name);
/// Returns the state for which `value` stands; nullptr for every other value.
const std::string* marked_state(const Json& value);
/// Returns whether `value` is a tree.
bool has_state_marks(const Json& value);

struct StateTree {
  Json value;
  std::vector<std::pair<std::string, std::string>> states;  ///< name, tensor
};
/// Makes a tree of the state `name`, in which {"$tensor": tensor} represents tensors. The names of
/// their states are different, and is_state_name() holds for each if `name` has up to 48 bytes.
StateTree tree_of(std::string_view name, Json value);

/// Puts members with levels into dicts: {"a--b": x} becomes {"a": {"b": x}}, and those that a tree
/// mentions to their places in it; null is at the place of one that is missing. A member whose
/// place is taken keeps its name.
Json nest_states(const Json::object_t& members);

}  // namespace unishard::converters
