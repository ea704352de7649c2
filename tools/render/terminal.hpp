#pragma once
// Output of the tools: text to standard output, and what the terminal is.
#include "unishard/format/json.hpp"

#include <string>
#include <string_view>

namespace unishard::cli {

/// To standard output. Throws Io when it cannot be written (a full disk behind a redirection).
void print(std::string_view text);
/// Indented, with a final newline.
void print_json(const Json& json);

/// Columns of standard output's terminal; 100 when it is none.
std::size_t terminal_width();

}  // namespace unishard::cli
