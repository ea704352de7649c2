#include "core/python_json.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace unishard::converters {

std::string strict_json(std::string_view text) {
  constexpr std::array<std::string_view, 3> kNumbers = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  bool is_inside = false;
  while (!text.empty()) {
    std::size_t length = is_inside && text.front() == '\\' && text.size() > 1 ? 2 : 1;
    if (length == 1 && text.front() == '"') is_inside = !is_inside;
    const auto* const number = std::ranges::find_if(
        kNumbers, [&](std::string_view each) { return !is_inside && text.starts_with(each); });
    if (number != kNumbers.end()) {
      length = number->size();
      out += "null";
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace unishard::converters
