#pragma once
// Output of the tools, and what the terminal is. Everything that is printed goes through here, so
// that no byte of a file reaches the terminal unescaped (unishard/format/text.hpp).
#include "unishard/format/json.hpp"

#include <string>
#include <string_view>

namespace unishard::cli {

/// Lines to standard output. Throws Io when it cannot be written (a full disk behind a
/// redirection). A newline inside of a name must be escaped before: printable().
void print(std::string_view text);
/// Indented, with a final newline.
void print_json(const Json& json);

/// One line, without its newline, to standard error. Throws Io when it cannot be written.
void say(std::string_view line);
/// "unishard VERB: error: MESSAGE" and the hint to standard error, or to standard output where that
/// cannot be written.
void say_error(std::string_view verb, std::string_view message, std::string_view hint);

/// Columns of standard output's terminal; 100 when it is none.
std::size_t terminal_width();

}  // namespace unishard::cli
