#pragma once
// Whole numbers in the texts that the processes of a team exchange.
#include "unishard/format/error.hpp"

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace unishard::tools {

/// Parses a decimal number of at most 64 bits.
/// Throws: Corrupt, naming `where`.
inline std::uint64_t parse_number(std::string_view text, std::string_view where) {
  std::uint64_t value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || at != text.data() + text.size())
    raise(ErrorCode::Corrupt, std::string(where) + ": " + quote(text) + " is not a number");
  return value;
}

}  // namespace unishard::tools
