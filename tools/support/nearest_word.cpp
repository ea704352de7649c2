#include "support/nearest_word.hpp"

#include "unishard/format/edit_distance.hpp"

#include <algorithm>

namespace unishard::tools {

std::string nearest_word(std::string_view typed, const std::vector<std::string>& words) {
  constexpr std::size_t kLongest = 64, kShortestBeginning = 3;
  if (typed.size() > kLongest) return {};
  std::string nearest;
  std::size_t fewest = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const std::string& word : words) {
    const bool begins = typed.size() >= kShortestBeginning && word.starts_with(typed);
    const std::size_t differences = begins ? 0 : edit_distance(typed, word);
    if (differences >= fewest) continue;
    fewest = differences;
    nearest = word;
  }
  return nearest;
}

}  // namespace unishard::tools
