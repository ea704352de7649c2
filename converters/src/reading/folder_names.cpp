#include "reading/folder_names.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace unishard::converters {

std::optional<std::uint64_t> checkpoint_number(std::string_view name) {
  constexpr std::string_view kStart = "checkpoint";
  if (!name.starts_with(kStart) || name.size() < kStart.size() + 2) return std::nullopt;
  const char mark = name[kStart.size()];
  name.remove_prefix(kStart.size() + 1);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = error == std::errc() && end == name.data() + name.size();
  if ((mark != '-' && mark != '_') || !is_number) return std::nullopt;
  return number;
}

std::tuple<std::string_view, std::size_t, std::string_view> natural_order(std::string_view name) {
  const std::size_t text = name.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
  std::string_view number = name.substr(text);
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return {name.substr(0, text), number.size(), name.substr(text)};
}

std::optional<std::int64_t> step_in_name(std::string_view name) {
  constexpr std::array<std::string_view, 8> kWords = {"checkpoint-", "step",  "step-", "step_",
                                                      "step=",       "iter_", "iter-", "iter"};
  const std::size_t text = name.find_last_not_of("0123456789") + 1;
  const auto ends_text = [&](std::string_view word) {
    return name.substr(0, text).ends_with(word);
  };
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + text, name.data() + name.size(), step);
  if (error != std::errc() || !std::ranges::any_of(kWords, ends_text)) return std::nullopt;
  return step;
}

}  // namespace unishard::converters
