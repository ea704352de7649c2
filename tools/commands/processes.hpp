#pragma once
// Runs one verb in several processes: started by `--procs N`, or by a launcher that started the
// same command several times.
#include "unishard/format/error.hpp"

#include "team/team.hpp"

#include <CLI/CLI.hpp>

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace unishard::cli {

/// Returns the value of an environment variable; nullopt where it is not set.
std::optional<std::string> environment(const std::string& name);

struct Processes {
  unsigned count = 0;                ///< --procs; 0: from the launcher's variables
  std::vector<std::string> command;  ///< the program's arguments, verb first

  void add_to(CLI::App& command);

  struct Work {
    Path path;  ///< the path that is written or checked
    enum class Kind : std::uint8_t {
      Writes,  ///< the processes can meet beside the path
      Reads,   ///< on one machine they meet in the folder of temporary files
      Whole,   ///< cannot be split: process 0 does everything
    } kind = Kind::Writes;
  };
  /// Calls `body` in each process of the team, or starts the processes that do and waits for them.
  /// Returns the exit status. From then on, SIGINT and SIGTERM are caught in a team.
  int run(const Work& work, const std::function<int(tools::Team&)>& body) const;

 private:
  int launch() const;
  int run_in_team(tools::TeamOptions options, const std::function<int(tools::Team&)>& body) const;
};

/// The code with which a verb failed, in this process or in another one of its team.
ErrorCode cause_of(const std::exception& error);
/// Returns the exit status for it; 128 + the signal when a signal ended it, and after a ClosedPipe,
/// which ends other programs by SIGPIPE.
int status_of(const std::exception& error);

}  // namespace unishard::cli
