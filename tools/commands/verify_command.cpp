#include "commands/command.hpp"
#include "team/team_observer.hpp"
#include "views/terminal.hpp"
#include "views/verify_view.hpp"
#include "workflows/verify/verify.hpp"

namespace unishard::cli {
namespace {

struct VerifyRequest {
  std::string checkpoint;
  std::string merge_rules;  // a file; empty: none
  tools::VerifyOptions verify;
  bool json = false;
  std::string color = "auto";
  Processes processes;
  Resources resources;
};

int run_in(tools::Team& team, const VerifyRequest& options) {
  Progress progress(options.resources.quiet || !team.is_first());
  catch_interrupts();
  tools::TeamObserver observer(team, progress);
  tools::VerifyOptions wanted = options.verify;
  wanted.merge_rules = read_merge_rules(options.merge_rules);
  wanted.transfer = options.resources.transfer(observer);
  const tools::VerifyReport report =
      tools::verify(posix_storage(), options.checkpoint, wanted, team);
  progress.end();
  if (!team.is_first()) return 0;
  if (options.json) {
    print_json(verify_json(report));
  } else {
    print(verify_text(report), wants_color(options.color));
  }
  constexpr int kDamaged = 1, kNotReadable = 3;
  if (report.is_only_unread()) return kNotReadable;
  return report.is_clean() ? 0 : kDamaged;
}

int run(const VerifyRequest& options) {
  using Kind = Processes::Work::Kind;
  const Kind kind = options.verify.deep ? Kind::Reads : Kind::Whole;  // tables are read in no time
  return options.processes.run({options.checkpoint, kind},
                               [&](tools::Team& team) { return run_in(team, options); });
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  const auto options = std::make_shared<VerifyRequest>();
  CLI::App* command = add_verb(app, action, "verify",
                               "Check a checkpoint and say exactly what is damaged", options, run);
  add_checkpoint(*command, "checkpoint", options->checkpoint);
  add_tag(*command, options->verify.tag);
  add_merge_rules(*command, options->merge_rules);
  add_like(*command, options->verify.like);
  add_from_rank(*command, options->verify.from_rank);
  command->add_flag("--deep", options->verify.deep,
                    "Read and check every byte, not only the tables");
  command->add_flag("--all", options->verify.all_tags,
                    "Every checkpoint of the folder, and of the runs in it");
  command->add_flag("--json", options->json, "Report as JSON");
  add_color(*command, options->color);
  options->processes.add_to(*command);
  options->resources.add_to(*command);
  command->footer(
      "Exit status: 0 sound, 1 damage found, 3 it could not be read (a missing path, I/O, "
      "memory),\n"
      "             4 not a checkpoint, 6 of a version or layout that is not supported.\n"
      "Examples:\n"
      "  unishard verify runs/gpt\n"
      "  unishard verify runs/gpt --all --deep --json\n"
      "  srun -n 16 unishard verify runs/gpt --deep\n");
}

}  // namespace unishard::cli
