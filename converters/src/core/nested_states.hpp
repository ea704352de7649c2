#pragma once
// A state of an optimizer may be a dict of tensors and values, for example the 8-bit moments of
// bitsandbytes with their scales. A catalog has one state for each member, whose name is
// "<state>--<member>"; the files of torch have the dict.
// Thread safety: pure functions.
#include "unishard/format/json.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// Returns true for the name of a state that a catalog can hold.
bool is_state_name(std::string_view text);
/// Returns the name of a member of a dict.
std::string member_state(std::string_view state, std::string_view member);
/// Returns the names on the way to a state: {"a", "b"} for "a--b", one name for every other state.
std::vector<std::string> state_levels(const std::string& state);
/// Returns the levels of a state, joined by dots.
std::string dotted_state(const std::string& state);
/// Puts members with levels into dicts: {"a--b": x} becomes {"a": {"b": x}}. A member whose place
/// is taken keeps its name.
Json nest_states(const Json::object_t& members);

}  // namespace unishard::converters
