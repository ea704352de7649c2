#pragma once
// Who holds what of a tensor, as one line of text. Pure.
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <span>
#include <string>

namespace unishard::tools {

struct OwnedRange {
  std::uint32_t rank = 0;
  ElementRange range;
};

/// One character per rank: 0-9, a-z, A-Z, then again from 0.
char rank_symbol(std::uint32_t rank);

/// `width` columns; each shows the rank that holds the element in its middle, '.' where none does.
std::string draw_bar(std::span<const OwnedRange> owners, std::uint64_t elements, std::size_t width);

/// "0:[0,512) 1:[512,1000)"
std::string list_ranges(std::span<const OwnedRange> owners);

}  // namespace unishard::tools
