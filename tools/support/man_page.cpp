#include "support/man_page.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

namespace unishard::tools {
namespace {

/// Escapes what troff would interpret: backslashes, hyphens (which would become typographic ones)
/// and a control character at the beginning of a line.
std::string escaped(const std::string& line) {
  std::string out = line.starts_with('.') || line.starts_with('\'') ? "\\&" : "";
  for (const char c : line) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

/// Returns the lines as they are, without filling.
std::string as_is(const std::string& text) {
  std::string out = ".nf\n";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out += escaped(line) + "\n";
  return out + ".fi\n";
}

std::string option_entry(const OptionWords& option) {
  std::string value = option.value.empty() ? "" : fmt::format(" \\fI{}\\fR", escaped(option.value));
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}\n",
                     escaped(fmt::format("{}", fmt::join(option.names, ", "))), value,
                     escaped(option.description));
}

std::string usage(const VerbWords& verb) {
  std::string out = fmt::format("\\fBunishard {}\\fR [options]", escaped(verb.verb));
  for (const OptionWords& option : verb.options) {
    if (option.is_positional) out += fmt::format(" \\fI{}\\fR", escaped(option.names.front()));
  }
  return out;
}

std::string verb_section(const VerbWords& verb) {
  std::string out = fmt::format(".SS {}\n{}.\n.PP\n{}\n", escaped(verb.verb),
                                escaped(verb.description), usage(verb));
  for (const OptionWords& option : verb.options) {
    const bool is_help = std::ranges::count(option.names, "--help") > 0;  // the same in every verb
    if (!is_help) out += option_entry(option);
  }
  if (!verb.footer.empty()) out += ".PP\n" + as_is(verb.footer);
  return out;
}

}  // namespace

std::string man_page(const std::string& version, const std::string& summary,
                     const std::vector<VerbWords>& verbs, const std::string& notes) {
  std::string out = fmt::format(
      ".\\\" Made by `unishard man-page`.\n"
      ".TH UNISHARD 1 \"\" \"UniShard {}\" \"User Commands\"\n"
      ".SH NAME\nunishard \\- {}\n"
      ".SH SYNOPSIS\n\\fBunishard\\fR \\fIverb\\fR [\\fIoptions\\fR] [\\fIarguments\\fR]\n"
      ".SH VERBS\n",
      escaped(version), escaped(summary));
  for (const VerbWords& verb : verbs) out += verb_section(verb);
  return out + ".SH NOTES\n" + as_is(notes);
}

}  // namespace unishard::tools
