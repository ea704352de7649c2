#pragma once
// Options of DeepSpeed's launcher that `unishard launch` takes without doing anything, because it
// works that way, or refuses by name. None of them is in the help.
#include <CLI/CLI.hpp>

namespace unishard::cli {

/// Adds them. One that is refused throws InvalidArgument, with what to use instead, when it is
/// parsed.
void add_deepspeed_options(CLI::App& command);

}  // namespace unishard::cli
