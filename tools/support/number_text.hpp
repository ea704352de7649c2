#pragma once
// Whole numbers as processes of a team tell them to each other.
#include "unishard/format/error.hpp"

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace unishard::tools {

/// Throws Corrupt naming `where` for anything but decimal digits of 64 bits.
inline std::uint64_t parse_number(std::string_view text, std::string_view where) {
  std::uint64_t value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || at != text.data() + text.size())
    raise(ErrorCode::Corrupt, std::string(where) + ": " + quote(text) + " is not a number");
  return value;
}

}  // namespace unishard::tools
