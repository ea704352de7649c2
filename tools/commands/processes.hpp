#pragma once
// One verb in several processes: `--procs N`, or a launcher that started the same command several
// times.
#include "unishard/format/error.hpp"

#include "team/team.hpp"

#include <CLI/CLI.hpp>

#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace unishard::cli {

struct Processes {
  unsigned count = 0;                ///< --procs; 0: what the launcher's variables say
  std::vector<std::string> command;  ///< the program's arguments, verb first

  void add_to(CLI::App& command);

  struct Work {
    Path path;  ///< what is written, or checked
    enum class Kind : std::uint8_t {
      Writes,  ///< the processes can meet beside the path
      Reads,   ///< on one machine they meet where it has its temporary files
      Whole,   ///< cannot be split: the first process does it
    } kind = Kind::Writes;
  };
  /// Calls `body` in each process of the team, or starts the processes that do and waits for them.
  /// Returns the exit status. In a team SIGINT and SIGTERM are caught from here on.
  int run(const Work& work, const std::function<int(tools::Team&)>& body) const;

 private:
  int launch() const;
  int run_in_team(tools::TeamOptions options, const std::function<int(tools::Team&)>& body) const;
};

/// What made a verb fail, in this process or in another of its team.
ErrorCode cause_of(const std::exception& error);
/// The exit status that says so; 128 + the signal when one ended it.
int status_of(const std::exception& error);

}  // namespace unishard::cli
