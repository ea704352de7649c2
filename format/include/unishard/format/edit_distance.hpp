#pragma once
// Compares words, so that messages can suggest the one that a user meant.
// Thread safety: pure functions.
#include <cstddef>
#include <string_view>

namespace unishard {

/// Returns the fewest inserted, removed or replaced bytes that make `b` of `a` (Levenshtein's
/// distance).
/// Complexity: a.size() * b.size() steps; memory for b.size() numbers.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace unishard
