#pragma once
// Draws which rank holds which elements of a tensor, as one line of text.
// Thread safety: pure functions.
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <span>
#include <string>

namespace unishard::tools {

struct OwnedRange {
  std::uint32_t rank = 0;
  ElementRange range;
};

/// Returns one character per rank: 0-9, a-z, A-Z, then again from 0.
char rank_symbol(std::uint32_t rank);

/// Returns `width` columns. Each shows the rank that holds the element in its middle, or '.' when
/// no rank does.
std::string draw_bar(std::span<const OwnedRange> owners, std::uint64_t elements, std::size_t width);

/// Returns, for example, "0:[0,512) 1:[512,1000)".
std::string list_ranges(std::span<const OwnedRange> owners);

}  // namespace unishard::tools
