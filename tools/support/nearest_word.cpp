#include "support/nearest_word.hpp"

#include <algorithm>
#include <numeric>

namespace unishard::tools {
namespace {

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);  // distances of a's first characters to b's
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_word(std::string_view typed, const std::vector<std::string>& words) {
  constexpr std::size_t kLongest = 64, kShortestBeginning = 3;
  if (typed.size() > kLongest) return {};
  std::string nearest;
  std::size_t fewest = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const std::string& word : words) {
    const bool begins = typed.size() >= kShortestBeginning && word.starts_with(typed);
    const std::size_t differences = begins ? 0 : distance(typed, word);
    if (differences >= fewest) continue;
    fewest = differences;
    nearest = word;
  }
  return nearest;
}

}  // namespace unishard::tools
