#pragma once
// One conversion from its options to its report: what `convert` and `reshard` of other formats
// share.
#include "commands/command.hpp"
#include "workflows/conversion.hpp"

namespace unishard::cli {

struct ConvertRun {
  Path input;
  std::optional<std::string> tag;
  PartOptions part = {};
  std::string merge_rules = {};  ///< a file; empty: none
  NameOptions names = {};
  tools::Rules rules = {};  ///< of `merge_rules` and `names`
  tools::ConvertOptions convert;
  converters::Output output;  ///< format "" keeps the input's; tag "" too, else global_step<N>
  bool dry_run = false;
  bool strict = false;
  bool check = true;  ///< read back and compare
  bool check_input = true;
  bool json = false;
  bool may_be_fresh = false;  ///< beside the checkpoints of another run
  bool allows_missing = false;
  bool assumes_model_order = false;
  std::vector<std::string> tied_layers = {};  ///< "<key>=<layer>,<layer>"
  Resources resources;

  /// Adds --dry-run, --strict, --allow-missing, --assume-model-order, --no-check, --no-check-input,
  /// --json and the resources.
  void add_to(CLI::App& command);
  /// Adds --ep-size, --tensor, --pipeline and what belongs to them.
  void add_parallel_ranks(CLI::App& command);
  /// Throws: InvalidArgument for one of these with a format that has no such ranks.
  void require_parallel_format(std::string_view format) const;
  /// Collective. Returns the exit status: 1 when what was read back differs.
  int run(tools::Team& team) const;

 private:
  void add_pipeline(CLI::App& command);
};

/// Adds --to with the names of the formats; `sharded_only` are those that keep world size and
/// stage.
CLI::Option* add_to_format(CLI::App& command, std::string& to, const std::string& help,
                           bool sharded_only = false);

/// Adds --allow-missing and --assume-model-order; the other functions add one of them only.
void add_open_choices(CLI::App& command, bool& allows_missing, bool& assumes_model_order);
void add_allow_missing(CLI::App& command, bool& allows_missing);
void add_assume_model_order(CLI::App& command, bool& assumes_model_order);

/// Adds --fresh.
void add_fresh(CLI::App& command, bool& may_be_fresh);

/// Adds --dcp-layout with the names of the key layouts.
void add_dcp_layout(CLI::App& command, std::string& layout);
/// Throws: InvalidArgument when a key layout is asked for and the format is not DCP.
void require_dcp(const converters::Output& output);

}  // namespace unishard::cli
