#include "core/numbered_shards.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>

namespace unishard::converters {
namespace {

struct NumberedName {
  std::string around;  ///< the name without the first number
  std::uint64_t number = 0, count = 0;
};

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Takes apart "STEM-<number>-of-<count>.SUFFIX".
std::optional<NumberedName> parse(const std::string& name) {
  constexpr std::string_view kOf = "-of-";
  const std::size_t of = name.rfind(kOf);
  if (of == std::string::npos || of == 0) return std::nullopt;
  const std::size_t dash = name.rfind('-', of - 1);
  if (dash == std::string::npos) return std::nullopt;
  const std::size_t behind = of + kOf.size();
  const std::size_t dot = std::min(name.find('.', behind), name.size());
  const std::string_view text = name;
  const auto number = number_in(text.substr(dash + 1, of - dash - 1));
  const auto count = number_in(text.substr(behind, dot - behind));
  if (!number || !count) return std::nullopt;
  return NumberedName{name.substr(0, dash) + name.substr(of), *number, *count};
}

}  // namespace

std::string missing_shard(const std::vector<std::string>& names) {
  std::map<std::string, std::pair<std::uint64_t, std::set<std::uint64_t>>> models;
  for (const std::string& name : names) {
    const auto parsed = parse(name);
    if (!parsed) continue;
    auto& [count, numbers] = models[parsed->around];
    count = parsed->count;
    numbers.insert(parsed->number);
  }
  for (const auto& [around, model] : models) {
    const auto& [count, numbers] = model;
    if (numbers.size() < count)
      return fmt::format("{} of {} files named like {} are missing", count - numbers.size(), count,
                         around);
  }
  return {};
}

}  // namespace unishard::converters
