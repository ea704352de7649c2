#include "unishard/format/error.hpp"

#include "commands/command.hpp"
#include "commands/deepspeed_launch_options.hpp"
#include "launch/agent.hpp"
#include "launch/launcher.hpp"
#include "launch/pid_file.hpp"
#include "launch/python_program.hpp"
#include "support/gpus.hpp"
#include "views/terminal.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <numeric>

namespace unishard::cli {
namespace {

constexpr const char* kUsualHostfile = "/job/hostfile";  ///< DeepSpeed's

struct LaunchRequest {
  tools::LaunchOptions launch;
  tools::HostFilter filter;
  std::optional<std::uint32_t> ranks;
  std::optional<std::uint32_t> timeout_seconds;
  std::string hostfile;
  bool no_ssh = false;
  bool is_agent = false;
  bool is_module = false, no_python = false, passes_local_rank = false;
  bool saves_pid = false, is_quiet = false;
  std::string log_of_each_rank;  ///< DeepSpeed's option for launch.log_folder
  CLI::App* command = nullptr;
};

/// Returns this machine with one slot per GPU.
tools::HostSlots this_machine(const tools::HostFilter& filter) {
  tools::HostSlots host{.name = "localhost", .slots = tools::gpu_numbers()};
  if (host.slots.empty() && filter.devices == 0) {
    raise(ErrorCode::InvalidArgument,
          "this machine has no GPUs, so that the number of ranks is not known",
          "give it with -n, or name hosts with --hostfile");
  }
  if (host.slots.empty()) host.slots.resize(filter.devices);
  return host;
}

/// Returns the hosts that take part; none: ranks on this machine, by their number alone.
std::vector<tools::HostSlots> hosts_of(const LaunchRequest& options) {
  const bool has_filter = !options.filter.include.empty() || !options.filter.exclude.empty() ||
                          options.filter.nodes != 0 || options.filter.devices != 0;
  if (options.ranks) {
    if (has_filter || !options.hostfile.empty() || options.no_ssh) {
      raise(ErrorCode::InvalidArgument,
            "-n is for one machine: it excludes --hostfile, --include, --exclude, --num_nodes, "
            "--num_gpus and --no_ssh",
            "the hostfile says how many ranks a host gets, and --num_gpus N gives N to each");
    }
    return {};
  }
  const std::string path = options.hostfile.empty() ? kUsualHostfile : options.hostfile;
  const auto text = tools::read_small_file(path);
  if (!text && !options.hostfile.empty())
    raise(ErrorCode::NotFound, fmt::format("the hostfile {} is not there", quote(path)));
  if (!text && options.no_ssh) {
    raise(ErrorCode::InvalidArgument, "--no_ssh needs a hostfile, the same on each host",
          "name it with --hostfile");
  }
  if (text) return select_hosts(tools::parse_hostfile(*text, path), options.filter);
  return select_hosts({this_machine(options.filter)}, options.filter);
}

/// Returns the variables that the options and DeepSpeed's files stand for.
tools::Variables variables_of(const LaunchRequest& options) {
  tools::Variables variables;
  if (!options.ranks) variables = tools::read_environment_files(environment);
  if (!options.launch.interface.empty()) {
    for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"})
      variables.emplace_back(name, options.launch.interface);
  }
  if (options.timeout_seconds) {
    const std::uint32_t seconds = *options.timeout_seconds;
    variables.emplace_back("UNISHARD_TIMEOUT", std::to_string(seconds));
    variables.emplace_back("DEEPSPEED_TIMEOUT", std::to_string((seconds + 59) / 60));  // minutes
  }
  return variables;
}

void check_node_rank(const LaunchRequest& options) {
  if (options.no_ssh == options.launch.node_rank.has_value()) return;
  raise(ErrorCode::InvalidArgument,
        options.no_ssh ? "--no_ssh needs --node_rank" : "--node_rank needs --no_ssh",
        "with both, this machine starts the ranks of that host of the hostfile, counted from 0, "
        "and the other hosts start theirs");
}

tools::ProgramKind kind_of(const LaunchRequest& options) {
  if (options.is_module && options.no_python)
    raise(ErrorCode::InvalidArgument, "--module and --no_python exclude each other");
  if (options.is_module) return tools::ProgramKind::Module;
  return options.no_python ? tools::ProgramKind::Direct : tools::ProgramKind::ByName;
}

void set_program(const LaunchRequest& options, tools::LaunchOptions& wanted) {
  const std::vector<std::string> given = options.command->remaining();
  // The first word that is no option of this verb begins the program, also that of an option.
  if (!given.empty() && given.front().starts_with('-')) {
    raise(ErrorCode::InvalidArgument, fmt::format("unknown option {}", quote(given.front())),
          "`unishard launch --help` lists the options; put -- before a program");
  }
  tools::ProgramWords words = tools::program_words(given, kind_of(options));
  if (options.passes_local_rank)
    wanted.words_before_local_rank = static_cast<std::uint32_t>(words.own);
  wanted.command = std::move(words.command);
}

/// Returns the folder for the ranks' logs. DeepSpeed's option means none by "None".
std::string log_folder_of(const LaunchRequest& options) {
  if (options.log_of_each_rank.empty() || options.log_of_each_rank == "None")
    return options.launch.log_folder;
  if (!options.launch.log_folder.empty())
    raise(ErrorCode::InvalidArgument, "--log-dir and --enable_each_rank_log mean the same",
          "give one of them");
  return options.log_of_each_rank;
}

int run(const LaunchRequest& options) {
  if (options.is_agent) return tools::run_agent(options.launch.ssh.host_timeout);
  check_node_rank(options);
  tools::LaunchOptions wanted = options.launch;
  set_program(options, wanted);
  wanted.log_folder = log_folder_of(options);
  wanted.hosts = hosts_of(options);
  wanted.ranks = options.ranks.value_or(1);
  wanted.variables = variables_of(options);
  if (!options.is_quiet)
    wanted.on_note = [](const std::string& text) { say("unishard launch: " + text); };
  std::optional<tools::PidFile> pid_file;
  if (options.saves_pid) pid_file.emplace("/tmp");
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

/// CLI::Range lets a NaN pass.
std::string check_host_timeout(const std::string& text) {
  double value = 0;
  if (CLI::detail::lexical_cast(text, value) && value >= 2 && value <= 3600) return {};
  return text + " is not a number from 2 to 3600";
}

void add_host_options(CLI::App& command, LaunchRequest& options) {
  command.add_option("-H,--hostfile", options.hostfile,
                     "Hosts, one a line: NAME slots=N (default: /job/hostfile if it is there). "
                     "They are reached through ssh, without a password, and have this program and "
                     "the working folder at the same paths");
  command.add_option("-i,--include", options.filter.include,
                     "Only these: HOST[:SLOT[,SLOT]...][@HOST...]");
  command.add_option("-e,--exclude", options.filter.exclude, "All but these");
  command
      .add_option("--num_nodes,--num-nodes", options.filter.nodes, "Only the first so many hosts")
      ->check(CLI::Range(std::uint32_t{1}, static_cast<std::uint32_t>(tools::kHostsMax)));
  command
      .add_option("--num_gpus,--num-gpus,--num_accelerators", options.filter.devices,
                  "Ranks on each host")
      ->check(CLI::Range(1u, tools::kSlotsMax));
  command.add_flag("--no_ssh,--no-ssh", options.no_ssh,
                   "Start only the ranks of this host, which --node_rank names; the command is run "
                   "on each host");
  command.add_option("--node_rank,--node-rank", options.launch.node_rank,
                     "Place of this host in the hostfile, from 0");
  command.add_option("--ssh_port,--ssh-port", options.launch.ssh.port, "Port of the hosts' sshd")
      ->check(CLI::Range(1, 65535));
  command.add_option("--ssh-config,--ssh_config", options.launch.ssh.config,
                     "Configuration file of ssh (its -F)");
  command
      .add_option("--host-timeout,--host_timeout", options.launch.ssh.host_timeout,
                  "Seconds without an answer after which a host counts as lost")
      ->check(check_host_timeout)
      ->capture_default_str();
}

void add_job_options(CLI::App& command, LaunchRequest& options) {
  command
      .add_option("-n,--nproc-per-node,--nproc_per_node", options.ranks,
                  "Ranks on this machine (default: one per GPU)")
      ->check(CLI::Range(1u, tools::kSlotsMax));
  command.add_option("--master-addr,--master_addr", options.launch.master_addr,
                     "MASTER_ADDR of the ranks (default: an address of the first host)");
  command
      .add_option("--master-port,--master_port", options.launch.master_port,
                  "MASTER_PORT (default: a free port of the first host; 29500 with --no_ssh)")
      ->check(CLI::Range(1, 65535));
  command
      .add_option("--max-restarts,--max_restarts", options.launch.max_restarts,
                  "Times that the job starts again when a rank or host fails, on the hosts that "
                  "are left")
      ->check(CLI::Range(0u, 1000000u))
      ->capture_default_str();
  command.add_option("--interface", options.launch.interface,
                     "Network interface of Gloo and NCCL (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)");
  command
      .add_option("--timeout", options.timeout_seconds,
                  "Seconds of silence after which a rank counts as failed (UNISHARD_TIMEOUT, "
                  "DEEPSPEED_TIMEOUT)")
      ->check(CLI::Range(1u, 31536000u));
  command.add_flag("--prefix-output,--prefix_output,--tee", options.launch.prefix_output,
                   "Put [rank N] before each line that a rank prints; always with several hosts");
  command.add_option("--log-dir,--log_dir", options.launch.log_folder,
                     "Folder for a copy of what each rank prints: rank-N.log, appended to");
  command.add_option("--enable_each_rank_log,--enable-each-rank-log", options.log_of_each_rank,
                     "DeepSpeed's name of --log-dir; None: no logs");
  command.add_flag("--save_pid,--save-pid", options.saves_pid,
                   "Keep the number of this process in /tmp/<number>.deepspeed while it runs");
  command.add_flag("-q,--quiet", options.is_quiet, "Do not announce restarts");
  command.add_flag("--agent", options.is_agent)->group("");
}

void add_program_options(CLI::App& command, LaunchRequest& options) {
  command.add_flag("-m,--module", options.is_module,
                   "PROGRAM is a Python module, run by python3 -u -m");
  command.add_flag("--no_python,--no-python", options.no_python,
                   "Run PROGRAM itself also where its name ends in .py (else python3 -u runs it)");
  command.add_flag("--pass_local_rank,--pass-local-rank,!--no_local_rank,!--no-local-rank",
                   options.passes_local_rank,
                   "Give PROGRAM --local_rank=N as its first argument, as DeepSpeed does unless "
                   "--no_local_rank is given; LOCAL_RANK is always set");
}

}  // namespace

void add_launch(CLI::App& app, Action& action) {
  const auto options = std::make_shared<LaunchRequest>();
  CLI::App* command =
      add_verb(app, action, "launch",
               "Start a program once per rank, on this machine or on several hosts", options, run);
  options->command = command;
  command->prefix_command();
  command->formatter(std::make_shared<LaunchHelp>());
  add_job_options(*command, *options);
  add_host_options(*command, *options);
  add_program_options(*command, *options);
  add_deepspeed_options(*command);
  command->footer(
      "Sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and "
      "OMP_NUM_THREADS=1\n"
      "unless it is set; with hosts also GROUP_RANK, CUDA_VISIBLE_DEVICES (the slots), and the "
      "variables of\n"
      ".deepspeed_env. When a rank fails, the others get SIGTERM and after 5 s SIGKILL; the exit "
      "status is\n"
      "that of the first rank that failed (128 + signal); status 3, which may be a consequence of\n"
      "another rank's failure, gives way to one that follows within 0.3 seconds.\n"
      "Examples:\n"
      "  unishard launch --nproc-per-node 4 -- ./train_gpt --config ds_config.json\n"
      "  unishard launch --hostfile hosts --include a:0,1@b --max-restarts 3 -- ./train_gpt ...\n");
}

}  // namespace unishard::cli
