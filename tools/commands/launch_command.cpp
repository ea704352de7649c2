#include "commands/command.hpp"
#include "launch/launcher.hpp"
#include "views/terminal.hpp"

#include <fmt/format.h>

namespace unishard::cli {
namespace {

struct LaunchRequest {
  tools::LaunchOptions launch;
  CLI::App* command = nullptr;
};

int run(const LaunchRequest& options) {
  tools::LaunchOptions wanted = options.launch;
  wanted.command = options.command->remaining();
  const auto failure = tools::launch(wanted);
  if (!failure) return 0;
  say_error("launch", ErrorCode::PeerFailed, failure->text() + "; the other ranks were stopped",
            {});
  return failure->status();
}

/// Shows that a program follows the options.
class LaunchHelp : public CLI::Formatter {
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = Formatter::make_usage(app, std::move(name));
    usage.insert(usage.find_last_not_of('\n') + 1, " -- PROGRAM [ARGUMENTS]...");
    return usage;
  }
};

}  // namespace

void add_launch(CLI::App& app, Action& action) {
  const auto options = std::make_shared<LaunchRequest>();
  CLI::App* command = add_verb(app, action, "launch",
                               "Start a program once per rank on this machine", options, run);
  options->command = command;
  command->prefix_command();
  command->formatter(std::make_shared<LaunchHelp>());
  command
      ->add_option("-n,--nproc-per-node,--nproc_per_node", options->launch.ranks, "Ranks to start")
      ->required()
      ->check(CLI::Range(1u, 4096u));
  command
      ->add_option("--master-addr,--master_addr", options->launch.master_addr,
                   "MASTER_ADDR of the ranks")
      ->capture_default_str();
  command->add_option("--master-port,--master_port", options->launch.master_port,
                      "MASTER_PORT (default: a free one)");
  command->add_flag("--prefix-output,--prefix_output,--tee", options->launch.prefix_output,
                    "Put [rank N] before each line that a rank prints");
  command->footer(
      "Sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and "
      "OMP_NUM_THREADS=1\n"
      "unless it is set. When a rank fails, the others get SIGTERM and after 5 s SIGKILL; the exit "
      "status is\n"
      "that of the first rank that failed (128 + signal); status 3, which may be a consequence of\n"
      "another rank's failure, gives way to one that follows within 0.3 seconds.\n"
      "Example:\n"
      "  unishard launch --nproc-per-node 4 -- ./train_gpt --config ds_config.json\n");
}

}  // namespace unishard::cli
