#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace unishard::tools {

/// How a rank ended, or which host was lost.
struct RankFailure {
  std::uint32_t rank = 0;
  pid_t pid = 0;
  int exit_code = 0;
  int signal = 0;         ///< 0: it exited with exit_code
  std::string host = {};  ///< where it ran; empty: on this machine
  std::string lost = {};  ///< why `host` was lost, which is then the failure; empty: a rank ended
  std::optional<int> first_rank_exit =
      {};  ///< what rank 0 exited with; nullopt: a signal killed it

  /// Returns the exit status as a shell reports it: exit_code, or 128 + signal.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
  /// Returns, for example, "rank 1 (pid 4711) was killed by signal 9 (SIGKILL)".
  std::string text() const;
};

}  // namespace unishard::tools
