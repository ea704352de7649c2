#include "commands/command.hpp"
#include "support/completion.hpp"
#include "views/terminal.hpp"

namespace unishard::cli {
namespace {

struct CompletionRequest {
  std::string shell;
  const CLI::App* program = nullptr;
};

std::vector<tools::VerbWords> words_of(const CLI::App& program) {
  std::vector<tools::VerbWords> verbs;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    tools::VerbWords words{command->get_name(), command->get_description(), {}};
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) words.options.push_back("--" + name);
    }
    verbs.push_back(std::move(words));
  }
  return verbs;
}

int run(const CompletionRequest& options) {
  const std::vector<tools::VerbWords> verbs = words_of(*options.program);
  print(options.shell == "bash" ? tools::bash_completion(verbs) : tools::zsh_completion(verbs));
  return 0;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  const auto options = std::make_shared<CompletionRequest>();
  options->program = &app;
  CLI::App* command =
      add_verb(app, action, "completion", "Print a completion script for a shell", options, run);
  command->add_option("shell", options->shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  command->footer("Example:\n  source <(unishard completion bash)\n");
}

}  // namespace unishard::cli
