#include "views/terminal.hpp"

#include "unishard/format/text.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace unishard::cli {
namespace {

bool write_to(std::FILE* stream, std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stream) == text.size() &&
         std::fflush(stream) == 0;
}

void write_to_output(std::string_view text) {
  if (write_to(stdout, text)) return;
  if (errno == EPIPE) throw ClosedPipe();
  raise_errno("writing", "standard output", errno);
}

std::string_view escape_code(Style style) {
  switch (style) {
    case Style::Plain:
      return "";
    case Style::Good:
      return "\x1b[32m";
    case Style::Bad:
      return "\x1b[31m";
    case Style::Notice:
      return "\x1b[33m";
  }
  return "";
}

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void print(std::string_view text) { write_to_output(printable_lines(text)); }

void print(const StyledText& text, bool is_coloured) {
  std::string out;
  for (const StyledText::Part& part : text.parts()) {
    const std::string_view code = is_coloured ? escape_code(part.style) : "";
    out += fmt::format("{}{}{}", code, printable_lines(part.text), code.empty() ? "" : "\x1b[0m");
  }
  write_to_output(out);
}

void print_json(const Json& json) {
  write_to_output(printable_json(json.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n");
}

void say(std::string_view line) {
  if (!write_to(stderr, printable(line) + "\n")) raise_errno("writing", "standard error", errno);
}

void say_error(std::string_view verb, ErrorCode code, std::string_view message,
               std::string_view hint) {
  std::string text;
  if (environment("UNISHARD_ERRORS") == "json") {
    const Json error = {
        {"verb", verb}, {"code", to_string(code)}, {"message", message}, {"hint", hint}};
    text = Json{{"error", error}}.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
  } else {
    text = fmt::format("unishard{}{}: error: {}\n", verb.empty() ? "" : " ", printable(verb),
                       printable(message));
    if (!hint.empty()) text += fmt::format("  hint: {}\n", printable(hint));
  }
  if (!write_to(stderr, text)) write_to(stdout, text);
}

bool wants_color(std::string_view when) {
  if (when != "auto") return when == "always";
  // mpirun gives its processes a terminal, and sends what they print to a file or pipe perhaps.
  return ::isatty(STDOUT_FILENO) == 1 && environment("NO_COLOR").empty() &&
         environment("TERM") != "dumb" && environment("OMPI_COMM_WORLD_RANK").empty();
}

std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 100;
  return std::clamp<std::size_t>(size.ws_col, 60, 200);
}

}  // namespace unishard::cli
