#pragma once

namespace unishard::tools {

/// Runs the ranks of one host for a launcher on another one, as message.hpp describes, through
/// standard input and output. Returns the exit status. When the launcher closes the input, or is
/// silent for longer than the time limit, all ranks are killed at once.
/// Pre: called from the main thread, as launch() is.
/// Throws: Io; Corrupt when the input is not from a launcher.
int run_agent(double host_timeout);

}  // namespace unishard::tools
