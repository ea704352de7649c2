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

/// Escapes text inside fish's single quotes, in which a backslash escapes.
std::string quoted_for_fish(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out;
}

/// Returns the names with two dashes, joined by spaces.
std::string long_names(const VerbWords& verb) {
  std::string out;
  for (const OptionWords& option : verb.options) {
    for (const std::string& name : option.names) {
      if (name.starts_with("--")) out += (out.empty() ? "" : " ") + name;
    }
  }
  return out;
}

/// Returns fish's line for one option; empty for a positional argument.
std::string fish_option(const VerbWords& verb, const OptionWords& option) {
  if (option.is_positional) return "";
  std::string names;
  for (const std::string& name : option.names) {
    const bool is_long = name.starts_with("--");
    names += fmt::format(" {} {}", is_long ? "-l" : "-s", name.substr(is_long ? 2 : 1));
  }
  return fmt::format("complete -c unishard -n '__fish_seen_subcommand_from {}'{}{} -d '{}'\n",
                     verb.verb, names, option.value.empty() ? "" : " -r",
                     quoted_for_fish(option.description));
}

}  // namespace

std::string bash_completion(const std::vector<VerbWords>& verbs) {
  std::vector<std::string> names;
  std::string cases;
  for (const VerbWords& verb : verbs) {
    names.push_back(verb.verb);
    cases += fmt::format("      {}) words='{}' ;;\n", verb.verb, long_names(verb));
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
    cases += fmt::format("      {}) options=({}) ;;\n", verb.verb, long_names(verb));
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

std::string fish_completion(const std::vector<VerbWords>& verbs) {
  std::string out =
      "# fish completion of unishard: unishard completion fish > "
      "~/.config/fish/completions/unishard.fish\n";
  for (const VerbWords& verb : verbs) {
    out += fmt::format("complete -c unishard -n __fish_use_subcommand -f -a {} -d '{}'\n",
                       verb.verb, quoted_for_fish(verb.description));
    for (const OptionWords& option : verb.options) out += fish_option(verb, option);
  }
  return out;
}

}  // namespace unishard::tools
