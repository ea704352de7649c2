#pragma once
// Output of the tools, and properties of the terminal. All output passes through these functions,
// so that no byte of a file reaches the terminal unescaped (unishard/format/text.hpp).
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "views/styled_text.hpp"

#include <string>
#include <string_view>

namespace unishard::cli {

/// Nobody reads standard output any more, as behind `| head`. The program ends without a message.
class ClosedPipe : public Error {
 public:
  ClosedPipe() : Error(ErrorCode::Io, "nobody reads standard output any more") {}
};

/// Writes lines to standard output. A newline inside a name must be escaped before, by printable().
/// Throws: ClosedPipe when nobody reads; Io when writing fails otherwise, for example on a full
/// disk behind a redirection.
void print(std::string_view text);
/// Writes the parts as print() does, with escape sequences for their styles when `is_coloured`.
void print(const StyledText& text, bool is_coloured);
/// Writes indented JSON with a final newline, as print() does.
void print_json(const Json& json);

/// Writes one line, given without its newline, to standard error.
/// Throws: Io when writing fails.
void say(std::string_view line);
/// Writes "unishard VERB: error: MESSAGE" and the hint to standard error, or to standard output
/// when that fails. When the environment has UNISHARD_ERRORS=json, writes one line of JSON instead,
/// for programs that start this one: {"error":{"verb":...,"code":...,"message":...,"hint":...}}.
void say_error(std::string_view verb, ErrorCode code, std::string_view message,
               std::string_view hint);

/// Returns true when standard output gets colours: with "always", and with "auto" when it is a
/// terminal that has colours, mpirun has not made it, and NO_COLOR is unset or empty
/// (https://no-color.org).
bool wants_color(std::string_view when);

/// Returns the columns of the terminal on standard output; 100 when it is no terminal.
std::size_t terminal_width();

}  // namespace unishard::cli
