// `completion` and the hidden `man-page`: texts made from the command line's own description, so
// that they never say anything else.
#include "unishard/format/version.hpp"

#include "commands/command.hpp"
#include "support/completion.hpp"
#include "support/man_page.hpp"
#include "views/terminal.hpp"

namespace unishard::cli {
namespace {

struct CompletionRequest {
  std::string shell;
  const CLI::App* program = nullptr;
};

struct ManPageRequest {
  const CLI::App* program = nullptr;
};

tools::OptionWords words_of(const CLI::Option& option) {
  tools::OptionWords words;
  words.is_positional = option.get_positional();
  words.description = option.get_description();
  if (words.is_positional) {
    words.names = {option.get_name(true)};
    return words;
  }
  for (const std::string& name : option.get_snames()) words.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) words.names.push_back("--" + name);
  if (option.get_items_expected_max() > 0) words.value = option.get_type_name();
  return words;
}

/// Returns the verbs that `unishard --help` shows, with the options that their help shows.
std::vector<tools::VerbWords> words_of(const CLI::App& program) {
  std::vector<tools::VerbWords> verbs;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;
    tools::VerbWords words{
        command->get_name(), command->get_description(), {}, command->get_footer()};
    for (const CLI::Option* option : command->get_options()) {
      if (!option->get_group().empty()) words.options.push_back(words_of(*option));
    }
    verbs.push_back(std::move(words));
  }
  return verbs;
}

int print_completion(const CompletionRequest& options) {
  const std::vector<tools::VerbWords> verbs = words_of(*options.program);
  if (options.shell == "bash") print(tools::bash_completion(verbs));
  if (options.shell == "zsh") print(tools::zsh_completion(verbs));
  if (options.shell == "fish") print(tools::fish_completion(verbs));
  return 0;
}

int print_man_page(const ManPageRequest& options) {
  const CLI::App& program = *options.program;
  print(tools::man_page(std::string(kLibraryVersion), program.get_description(), words_of(program),
                        program.get_footer()));
  return 0;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  const auto options = std::make_shared<CompletionRequest>();
  options->program = &app;
  CLI::App* command = add_verb(app, action, "completion", "Print a completion script for a shell",
                               options, print_completion);
  command->add_option("shell", options->shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer("Example:\n  source <(unishard completion bash)\n");

  const auto page = std::make_shared<ManPageRequest>();
  page->program = &app;
  add_verb(app, action, "man-page", "Print the manual page as troff source", page, print_man_page)
      ->group("");
}

}  // namespace unishard::cli
