#pragma once
// Implements `unishard launch`: starts the ranks of a job on one machine or on several hosts, like
// torchrun and DeepSpeed's launcher, and stops all of them.
#include "launch/environment_file.hpp"
#include "launch/hostfile.hpp"
#include "launch/rank_failure.hpp"
#include "launch/ssh_command.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct LaunchOptions {
  std::uint32_t ranks = 1;            ///< on this machine, when there are no hosts
  std::vector<HostSlots> hosts = {};  ///< one rank per slot; ranks count through them in this order
  std::string master_addr = {};       ///< empty: an address of the first host
  std::uint16_t master_port = 0;      ///< 0: a free port of the first host
  std::vector<std::string> command = {};  ///< program, looked up in PATH, and its arguments
  /// Words of `command` before `--local_rank=N`, which each rank gets; 0: it gets none.
  std::uint32_t words_before_local_rank = 0;
  bool prefix_output = false;   ///< "[rank 3] " before every line; always with several hosts
  std::string log_folder = {};  ///< gets one file per rank; empty: none
  /// Seconds from SIGTERM to SIGKILL once a rank has failed.
  double grace_seconds = 5;
  /// Host of `hosts` that this machine is: its ranks are started here, and the launchers of the
  /// other hosts start theirs. nullopt: all hosts are reached through ssh.
  std::optional<std::uint32_t> node_rank = {};
  SshOptions ssh = {};
  Variables variables = {};    ///< for every rank
  std::string interface = {};  ///< network interface of Gloo and NCCL; empty: their choice
  /// Times that the job is started again after a failure.
  std::uint32_t max_restarts = 0;
  /// Receives a line when the job starts again, or has no host left to do so.
  std::function<void(const std::string&)> on_note = {};
};

/// Runs the command once per rank with torchrun's variables and waits for all. Returns the first
/// failure, or nullopt when all ranks exited with 0.
/// When a rank fails or a host is lost, the others get SIGTERM and, after the grace period,
/// SIGKILL. SIGTERM, SIGINT and SIGHUP to this process are forwarded to all ranks. When this
/// process dies or the connection to a host is lost, all ranks are killed.
/// With max_restarts, a job that failed starts again, without the hosts that were lost, unless a
/// signal has stopped it or the program ended with status 2 (usage) or 127 (there is none).
/// Pre: called from the main thread, because it takes over SIGCHLD, SIGTERM, SIGINT and SIGHUP
/// while it runs.
/// Throws: InvalidArgument; Io when no process can be started.
std::optional<RankFailure> launch(const LaunchOptions& options);

}  // namespace unishard::tools
