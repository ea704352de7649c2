#include "commands/deepspeed_launch_options.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace unishard::cli {
namespace {

struct Refusal {
  const char* option;
  bool has_value;
  const char* reason;
  const char* instead;
};

constexpr Refusal kRefusals[] = {
    {"--launcher_args", true, "there is no launcher below this one that would take them",
     "put options of ssh into a file and name it with --ssh-config"},
    {"--bind_cores_to_rank", false, "ranks are not bound to cores",
     "start a script that runs the program under taskset or numactl, by its LOCAL_RANK"},
    {"--bind_core_list", true, "ranks are not bound to cores",
     "start a script that runs the program under taskset or numactl, by its LOCAL_RANK"},
    {"--autotuning", true, "there is no tuner of configurations",
     "`unishard estimate` tells the memory of each stage and offload"},
    {"--venv_script", true, "no shell runs on the hosts that could read it",
     "activate the environment before, and set PATH in .deepspeed_env for other hosts"},
};

/// What DeepSpeed's --launcher chooses, and what is done here in its place.
struct LauncherName {
  const char* name;
  const char* instead;  ///< null: ssh serves as well
};
constexpr LauncherName kLaunchers[] = {
    {"pdsh", nullptr},
    {"ssh", nullptr},
    {"openmpi", "start the program with mpirun itself: its variables are read"},
    {"slurm", "start the program with srun itself: its variables are read"},
    {"mpich", "use the hostfile with ssh (leave --launcher out), or mpirun of Open MPI"},
    {"impi", "use the hostfile with ssh (leave --launcher out), or mpirun of Open MPI"},
    {"mvapich", "use the hostfile with ssh (leave --launcher out), or mpirun of Open MPI"},
};

void check_launcher(std::string name) {
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const auto* const found = std::ranges::find(kLaunchers, name, &LauncherName::name);
  if (found == std::end(kLaunchers))
    raise(ErrorCode::InvalidArgument, fmt::format("--launcher: {} is no launcher", quote(name)),
          "hosts are reached through ssh, as with pdsh: leave it out");
  if (found->instead)
    raise(ErrorCode::InvalidArgument, fmt::format("--launcher: {} does not start ranks here", name),
          found->instead);
}

std::string with_hyphens(std::string option) {
  std::replace(option.begin() + 2, option.end(), '_', '-');
  return option;
}

void refuse(CLI::App& command, const Refusal& each) {
  const auto raise_it = [each] {
    raise(ErrorCode::InvalidArgument, fmt::format("{}: {}", each.option, each.reason),
          each.instead);
  };
  const std::string names = fmt::format("{},{}", each.option, with_hyphens(each.option));
  if (each.has_value) {
    command.add_option_function<std::string>(names, [raise_it](const std::string&) { raise_it(); })
        ->group("");
  } else {
    command.add_flag_callback(names, raise_it)->group("");
  }
}

}  // namespace

void add_deepspeed_options(CLI::App& command) {
  for (const Refusal& each : kRefusals) refuse(command, each);
  command.add_option_function<std::string>("--launcher", check_launcher)->group("");
  // Hosts are connected to before the first rank starts, and a hostfile with one remote host means
  // that host.
  for (const char* names : {"--no_ssh_check,--no-ssh-check", "--force_multi,--force-multi"})
    command.add_flag_callback(names, [] {})->group("");
  command.add_option_function<std::string>("--log_level,--log-level", [](const std::string&) {})
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "critical"}))
      ->group("");
}

}  // namespace unishard::cli
