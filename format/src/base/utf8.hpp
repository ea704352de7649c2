#pragma once
#include <string_view>

namespace unishard::detail {

/// Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool valid_utf8(std::string_view text);

}  // namespace unishard::detail
