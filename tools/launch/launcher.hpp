#pragma once
// Implements `unishard launch`: starts the ranks of one machine, like torchrun, and stops all of
// them.
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct LaunchOptions {
  std::uint32_t ranks = 1;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;     ///< 0: a free port
  std::vector<std::string> command;  ///< program, looked up in PATH, and its arguments
  bool prefix_output = false;        ///< "[rank 3] " before every line
  /// Seconds from SIGTERM to SIGKILL once a rank has failed.
  double grace_seconds = 5;
};

struct RankFailure {
  std::uint32_t rank = 0;
  pid_t pid = 0;
  int exit_code = 0;
  int signal = 0;  ///< 0: it exited with exit_code
  std::optional<int> first_rank_exit =
      {};  ///< what rank 0 exited with; nullopt: a signal killed it

  /// Returns the exit status as a shell reports it: exit_code, or 128 + signal.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
  /// Returns, for example, "rank 1 (pid 4711) was killed by signal 9 (SIGKILL)".
  std::string text() const;
};

/// Returns a port on which no process listens.
/// Throws: Io.
std::uint16_t free_port();

/// Runs the command once per rank with torchrun's variables and waits for all. Returns the first
/// failure, or nullopt when all ranks exited with 0.
/// When a rank fails, the others get SIGTERM and, after the grace period, SIGKILL. SIGTERM, SIGINT
/// and SIGHUP to this process are forwarded to all ranks. Each rank leads its own process group and
/// is killed when this process dies; processes that a rank leaves behind are killed when the rank
/// ends.
/// Pre: called from the main thread, because it takes over SIGCHLD, SIGTERM, SIGINT and SIGHUP
/// while it runs.
/// Throws: InvalidArgument; Io when no process can be started.
std::optional<RankFailure> launch(const LaunchOptions& options);

}  // namespace unishard::tools
