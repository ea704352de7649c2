#include "workflows/report/finding_advice.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace unishard::tools {
namespace {

/// Findings that cost no element of the checkpoint.
constexpr std::array<std::string_view, 4> kHarmless = {
    "latest-names-missing-tag", "latest-unreadable", "stray-file", "statistics-differ"};

}  // namespace

Level level_of(const Finding& finding) {
  const bool is_harmless = finding.lost.empty() && std::ranges::count(kHarmless, finding.code) > 0;
  return is_harmless ? Level::Warning : Level::Error;
}

std::string advice_for(const Finding& finding) {
  if (!finding.hint.empty()) return finding.hint;
  if (finding.code == "stray-file") return "move the file away if no other program needs it";
  if (finding.code == "statistics-differ")
    return "the data is not affected; measure it again with `unishard report --stats`";
  if (!finding.lost.empty())
    return "resume from another checkpoint; `unishard verify --deep` lists the lost elements";
  return "resume from another checkpoint, or restore this file from a copy";
}

}  // namespace unishard::tools
