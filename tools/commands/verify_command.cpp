#include "commands/command.hpp"
#include "lib/verify.hpp"
#include "render/report_view.hpp"
#include "render/terminal.hpp"

namespace unishard::cli {
namespace {

struct Options {
  std::string checkpoint;
  tools::VerifyOptions verify;
  bool json = false;
  Resources resources;
};

int run(const Options& options) {
  Progress progress(options.resources.quiet);
  catch_interrupts();
  tools::VerifyOptions wanted = options.verify;
  wanted.transfer = options.resources.transfer(progress);
  const tools::VerifyReport report = tools::verify(posix_storage(), options.checkpoint, wanted);
  progress.end();
  if (options.json) {
    print_json(verify_json(report));
  } else {
    print(verify_text(report));
  }
  return report.is_clean() ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = add_verb(app, action, "verify",
                               "Check a checkpoint and say exactly what is damaged", options, run);
  command
      ->add_option("checkpoint", options->checkpoint, "Folder with `latest`, or one tag's folder")
      ->required();
  add_tag(*command, options->verify.tag);
  command->add_flag("--deep", options->verify.deep,
                    "Read and check every byte, not only the tables");
  command->add_flag("--all", options->verify.all_tags, "Every checkpoint of the folder");
  command->add_flag("--json", options->json, "Report as JSON");
  options->resources.add_to(*command);
  command->footer(
      "Exit status: 0 sound, 1 damage found, 4 not a checkpoint.\n"
      "Examples:\n"
      "  unishard verify runs/gpt\n"
      "  unishard verify runs/gpt --all --deep --json\n");
}

}  // namespace unishard::cli
