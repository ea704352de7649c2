#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace unishard::tools {

/// How a child process of the launcher starts.
struct ChildProcess {
  std::vector<std::string> command;      ///< program, looked up in PATH, and its arguments
  std::vector<std::string> environment;  ///< "NAME=value"
  std::string folder = {};               ///< working folder; empty: that of this process
  int in = -1, out = -1, err = -1;       ///< its standard streams; -1: /dev/null, and as they are
};

/// Starts a process that leads its own process group and gets SIGKILL when this process dies. It
/// exits with 127 and a message when the program cannot be executed.
/// Throws: Io when there is no process for it.
pid_t start_child(ChildProcess child);

}  // namespace unishard::tools
