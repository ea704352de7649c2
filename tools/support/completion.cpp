#include "support/completion.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace unishard::tools {
namespace {

/// Escapes text inside single quotes.
std::string quoted_for_shell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out;
}

}  // namespace

std::string bash_completion(const std::vector<VerbWords>& verbs) {
  std::vector<std::string> names;
  std::string cases;
  for (const VerbWords& verb : verbs) {
    names.push_back(verb.verb);
    cases += fmt::format("      {}) words='{}' ;;\n", verb.verb, fmt::join(verb.options, " "));
  }
  return fmt::format(
      "# bash completion of unishard: source <(unishard completion bash)\n"
      "_unishard() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} words=''\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    words='{} --help --version'\n"
      "  elif [ \"${{current:0:1}}\" = '-' ]; then\n"
      "    case ${{COMP_WORDS[1]}} in\n"
      "{}"
      "    esac\n"
      "  fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "complete -o default -F _unishard unishard\n",
      fmt::join(names, " "), cases);
}

std::string zsh_completion(const std::vector<VerbWords>& verbs) {
  std::string names;
  std::string cases;
  for (const VerbWords& verb : verbs) {
    names += fmt::format("    '{}:{}'\n", verb.verb, quoted_for_shell(verb.description));
    cases += fmt::format("      {}) options=({}) ;;\n", verb.verb, fmt::join(verb.options, " "));
  }
  return fmt::format(
      "#compdef unishard\n"
      "# zsh completion of unishard: put it into a folder of $fpath as _unishard\n"
      "_unishard() {{\n"
      "  local -a verbs options\n"
      "  verbs=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe verb verbs\n"
      "  elif [[ ${{words[CURRENT]}} == -* ]]; then\n"
      "    case ${{words[2]}} in\n{}"
      "    esac\n"
      "    compadd -- $options\n"
      "  else\n"
      "    _files\n"
      "  fi\n"
      "}}\n"
      "compdef _unishard unishard\n",
      names, cases);
}

}  // namespace unishard::tools
