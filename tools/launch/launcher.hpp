#pragma once
// Starts the ranks of one machine and never leaves one behind: `unishard launch`, the small brother
// of torchrun.
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct LaunchOptions {
  std::uint32_t ranks = 1;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;     ///< 0: a free one
  std::vector<std::string> command;  ///< program and arguments; the program is looked for in PATH
  bool prefix_output = false;        ///< "[rank 3] " before every line
  double grace_seconds = 5;          ///< from SIGTERM to SIGKILL, once a rank has failed
};

struct RankFailure {
  std::uint32_t rank = 0;
  pid_t pid = 0;
  int exit_code = 0;
  int signal = 0;  ///< 0: it exited with exit_code

  /// As a shell says it: exit_code, or 128 + signal.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
  /// "rank 1 (pid 4711) was killed by signal 9 (SIGKILL)"
  std::string text() const;
};

/// A port on which nobody listens. Throws Io.
std::uint16_t free_port();

/// Runs the command once per rank with torchrun's variables and waits for all. When a rank fails,
/// the others get SIGTERM, and SIGKILL after the grace; SIGTERM, SIGINT and SIGHUP that this
/// process gets go to all ranks. Each rank leads its own process group and dies with this process;
/// what a rank started and left is killed when the rank ends. Returns the first failure, or nullopt
/// when all ranks exited with 0. Main thread only: takes over SIGCHLD, SIGTERM, SIGINT and SIGHUP
/// while it runs. Throws InvalidArgument, or Io when no process can be started.
std::optional<RankFailure> launch(const LaunchOptions& options);

}  // namespace unishard::tools
