#pragma once
#include <cstdint>
#include <string_view>

namespace unishard {

/// One decoded code point.
struct CodePoint {
  std::uint32_t code = 0;  ///< the byte itself when it is not valid UTF-8
  std::size_t bytes = 1;
  bool is_valid = false;
};

/// Decodes the first code point of `text` by strict UTF-8: no overlong forms, no surrogates,
/// nothing above U+10FFFF.
/// Pre: `text` is not empty.
CodePoint first_code_point(std::string_view text);

/// Returns true when all of `text` is strict UTF-8.
bool valid_utf8(std::string_view text);

}  // namespace unishard
