#pragma once
// DeepSpeed's file of environment variables for all hosts, `.deepspeed_env`.
#include "unishard/format/launch_environment.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::tools {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// Parses lines of the form `NAME=VALUE`; a value is taken as it is, quotes and spaces inside
/// included. Blank lines and comments (`#`) are ignored. `path` is named in errors.
/// Throws: InvalidArgument for any other line.
Variables parse_environment_file(std::string_view text, std::string_view path);

/// Reads the files that DeepSpeed reads: `.deepspeed_env`, or what DS_ENV_FILE names, in the home
/// folder and then in the working folder, whose values win. An absolute DS_ENV_FILE is read alone.
/// Throws: InvalidArgument, also when DS_ENV_FILE is set and there is no such file; Io.
Variables read_environment_files(const EnvironmentLookup& lookup);

/// Returns the variables of this process that every host gets: those of NCCL, Gloo, LibTorch,
/// OpenMP, the libraries of matrix products, UCX, MVAPICH, MLflow, Python and UniShard, by the
/// first letters of their names.
Variables shared_variables();

/// Reads a small text file; nullopt when it is not there.
/// Throws: Io; InvalidArgument when it is longer than 1 MiB.
std::optional<std::string> read_small_file(const std::string& path);

}  // namespace unishard::tools
