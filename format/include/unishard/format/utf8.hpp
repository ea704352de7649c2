#pragma once
#include <cstdint>
#include <string_view>

namespace unishard {

struct CodePoint {
  std::uint32_t code = 0;  ///< the byte itself when it is not valid
  std::size_t bytes = 1;
  bool is_valid = false;
};

/// What `text` begins with, by strict UTF-8: no overlong forms, no surrogates, nothing above
/// U+10FFFF. Pre: not empty.
CodePoint first_code_point(std::string_view text);

/// Strict UTF-8 throughout.
bool valid_utf8(std::string_view text);

}  // namespace unishard
