#include "launch/python_program.hpp"

namespace unishard::tools {

ProgramWords program_words(std::vector<std::string> command, ProgramKind kind) {
  ProgramWords words{std::move(command), 1};
  if (words.command.empty()) return {};
  const bool is_script = kind == ProgramKind::ByName && words.command.front().ends_with(".py");
  std::vector<std::string> python;
  if (is_script) python = {"python3", "-u"};
  if (kind == ProgramKind::Module) python = {"python3", "-u", "-m"};
  words.own += python.size();
  words.command.insert(words.command.begin(), python.begin(), python.end());
  return words;
}

}  // namespace unishard::tools
