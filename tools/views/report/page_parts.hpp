#pragma once
// The page's source files as text, which CMake embeds (CMakeLists.txt), and the SHA-256 of style
// and script in hexadecimal.
#include <string_view>

namespace unishard::cli {

extern const std::string_view kPageHtml, kPageStyle, kPageScript;
extern const std::string_view kPageStyleSha256, kPageScriptSha256;

}  // namespace unishard::cli
