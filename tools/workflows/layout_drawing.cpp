#include "workflows/layout_drawing.hpp"

#include <fmt/format.h>

namespace unishard::tools {

char rank_symbol(std::uint32_t rank) {
  constexpr std::string_view kSymbols =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return kSymbols[rank % kSymbols.size()];
}

std::string draw_bar(std::span<const OwnedRange> owners, std::uint64_t elements,
                     std::size_t width) {
  std::string bar(width, '.');
  for (std::size_t column = 0; elements > 0 && column < width; ++column) {
    const double middle = (static_cast<double>(column) + 0.5) / static_cast<double>(width);
    const auto element = static_cast<std::uint64_t>(middle * static_cast<double>(elements));
    for (const OwnedRange& owner : owners) {
      if (owner.range.begin <= element && element < owner.range.end) {
        bar[column] = rank_symbol(owner.rank);
        break;
      }
    }
  }
  return bar;
}

std::string list_ranges(std::span<const OwnedRange> owners) {
  std::string text;
  for (const OwnedRange& owner : owners) {
    text += fmt::format("{}{}:[{},{})", text.empty() ? "" : " ", owner.rank, owner.range.begin,
                        owner.range.end);
  }
  return text;
}

}  // namespace unishard::tools
