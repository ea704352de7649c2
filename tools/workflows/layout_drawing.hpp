#pragma once
// Draws which rank holds which elements of a tensor, as one line of text.
// Thread safety: pure functions.
#include "unishard/format/box.hpp"

#include <cstdint>
#include <span>
#include <string>

namespace unishard::tools {

struct OwnedPart {
  std::uint32_t rank = 0;
  ElementRange range;  ///< of a box, its bounds
  Box box = {};        ///< without axes: the range
};

/// Returns one character per rank: 0-9, a-z, A-Z, then again from 0.
char rank_symbol(std::uint32_t rank);

/// Returns `width` columns. Each shows the rank that holds the element in its middle, or '.' when
/// no rank does.
std::string draw_bar(std::span<const OwnedPart> owners, const Shape& shape, std::size_t width);

/// Returns, for example, "0:[0,512) 1:[512,1000)", and boxes as "0:[0:64, 0:32]".
std::string list_parts(std::span<const OwnedPart> owners);

}  // namespace unishard::tools
