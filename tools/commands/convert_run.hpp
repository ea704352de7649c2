#pragma once
// One conversion from start to report: what `convert` and `reshard` share.
#include "unishard/converters/registry.hpp"

#include "commands/command.hpp"
#include "workflows/convert.hpp"

namespace unishard::cli {

struct ConvertRun {
  std::string input;
  std::optional<std::string> tag;
  tools::ConvertOptions convert;
  converters::Output output;  ///< format "" keeps the input's, tag "" too, else global_step<N>
  bool dry_run = false;
  bool strict = false;
  bool check = true;  ///< read back and compare digests
  bool check_input = true;
  bool json = false;
  Resources resources;

  /// Adds --dry-run, --strict, --no-check, --no-check-input, --json and the resources.
  void add_to(CLI::App& command);
};
/// Returns the exit status: 1 when what was read back differs.
int run_convert(tools::Team& team, ConvertRun job);

/// For who started several processes where one does the work.
inline constexpr std::string_view kOneProcessNote =
    "this output is written by one process, the others wait";

/// Names what is copied beside the model, on standard error; nothing when nothing is.
void print_side_files(const converters::SideFiles& files);

/// The names of known_formats(), for --to.
std::vector<std::string> format_names();
/// Those that keep world size and stage.
std::vector<std::string> sharded_format_names();
/// The suffix of one model file; else a name means a folder.
bool is_model_file(const Path& path);

}  // namespace unishard::cli
