#pragma once
// Finds the word that a user may have meant.
// Thread safety: pure functions.
#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

/// Returns the word with the fewest inserted, removed or replaced characters (Levenshtein's
/// distance), or "" when none differs in at most a third of `typed`. A longer word that begins with
/// `typed` counts as near.
std::string nearest_word(std::string_view typed, const std::vector<std::string>& words);

}  // namespace unishard::tools
