#pragma once
// One conversion from start to report: what `convert` and `reshard` share.
#include "commands/command.hpp"
#include "lib/conversion.hpp"

namespace unishard::cli {

struct ConvertRun {
  std::string input;
  std::optional<std::string> tag;
  tools::ConvertOptions convert;
  tools::OutputOptions
      output;  ///< format "" keeps the input's, tag "" the input's or global_step<N>
  bool dry_run = false;
  bool strict = false;
  bool check = true;  ///< read back and compare digests
  bool json = false;
  Resources resources;

  /// Adds --dry-run, --strict, --no-check, --json and the resources.
  void add_to(CLI::App& command);
};
/// Returns the exit status: 1 when what was read back differs.
int run_convert(ConvertRun job);

/// torch and safetensors: a file or a folder, as the output's name says.
bool is_model_format(std::string_view format);
bool is_model_file(const Path& path);

}  // namespace unishard::cli
