#include "workflows/layout_drawing.hpp"

#include <fmt/format.h>

namespace unishard::tools {

char rank_symbol(std::uint32_t rank) {
  constexpr std::string_view kSymbols =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return kSymbols[rank % kSymbols.size()];
}

namespace {

bool holds(const OwnedPart& owner, const Shape& shape, std::uint64_t element) {
  const ElementMap map(shape, owner.range, owner.box);
  return !map.own_in({element, element + 1}).empty();
}

}  // namespace

std::string draw_bar(std::span<const OwnedPart> owners, const Shape& shape, std::size_t width) {
  const std::uint64_t elements = element_count(shape);
  std::string bar(width, '.');
  for (std::size_t column = 0; elements > 0 && column < width; ++column) {
    const double middle = (static_cast<double>(column) + 0.5) / static_cast<double>(width);
    const auto element = static_cast<std::uint64_t>(middle * static_cast<double>(elements));
    for (const OwnedPart& owner : owners) {
      if (holds(owner, shape, element)) {
        bar[column] = rank_symbol(owner.rank);
        break;
      }
    }
  }
  return bar;
}

std::string list_parts(std::span<const OwnedPart> owners) {
  std::string text;
  for (const OwnedPart& owner : owners) {
    text += fmt::format("{}{}:", text.empty() ? "" : " ", owner.rank);
    text += owner.box.sizes.empty() ? fmt::format("[{},{})", owner.range.begin, owner.range.end)
                                    : to_text(owner.box);
  }
  return text;
}

}  // namespace unishard::tools
