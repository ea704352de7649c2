#include "workflows/name_parts.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>

namespace unishard::tools {
namespace {

constexpr std::size_t kDigitsMax = 6;

bool is_plain_number(std::string_view word) {
  const bool has_digits = !word.empty() && word.size() <= kDigitsMax &&
                          std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
  return has_digits && (word.size() == 1 || word.front() != '0');
}

}  // namespace

std::optional<std::uint32_t> NameParts::layer() const {
  return numbers.empty() ? std::nullopt : std::optional(numbers.front());
}

NameParts split_name(std::string_view name) {
  NameParts parts{{""}, {}};
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view word = name.substr(begin, end - begin);
    if (is_plain_number(word)) {
      std::from_chars(word.data(), word.data() + word.size(), parts.numbers.emplace_back());
      parts.texts.emplace_back();
    } else {
      parts.texts.back() += word;
    }
    if (end < name.size()) parts.texts.back() += '.';
    begin = end + 1;
  }
  return parts;
}

bool is_wanted(const std::string& name, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return true;
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

}  // namespace unishard::tools
