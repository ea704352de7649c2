#pragma once
// How a verb joins the program: add_<verb>() adds its options, and parsing sets the action that
// main then runs.
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/compression.hpp"

#include "commands/processes.hpp"
#include "views/progress.hpp"

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace unishard::cli {

/// What was asked for. The function returns the exit status: 0, or 1 for differences or damage.
struct Action {
  std::string verb;
  std::function<int()> run;
  std::vector<std::string> words = {};  ///< the program's arguments, verb first
};

/// Adds a verb whose options live as long as the program's parser. `run` gets them after parsing.
template <class Options>
CLI::App* add_verb(CLI::App& app, Action& action, const std::string& verb,
                   const std::string& description, const std::shared_ptr<Options>& options,
                   int (*run)(const Options&)) {
  CLI::App* command = app.add_subcommand(verb, description);
  command->callback([&action, verb, options, run] {
    action.verb = verb;
    action.run = [&action, options, run] {
      if constexpr (requires { options->processes; }) options->processes.command = action.words;
      if constexpr (requires { options->resources.apply(); }) options->resources.apply();
      return run(*options);
    };
  });
  return command;
}

/// The options of every verb that moves data.
struct Resources {
  unsigned threads = 0;  ///< 0: one per hardware thread, at least 4
  std::string memory_limit = "1GiB";
  std::string io = "auto";
  bool quiet = false;

  void add_to(CLI::App& command);
  /// What --memory-limit says, or less where `ulimit -v` or `ulimit -d` leaves less. Throws
  /// InvalidArgument for too little, Io when it is `ulimit` that leaves too little.
  std::uint64_t memory_bytes() const;
  /// Sets how this process accesses files. Before the verb opens any.
  void apply() const;
  /// Buffers and threads that stay within the limit beside the tables of `tensors` tensors; files
  /// that are opened from now on are accessed so as well. Reports to `progress`.
  TransferOptions transfer(Observer& progress, std::uint64_t tensors = 0,
                           const Compression& compression = {}) const;

 private:
  unsigned wanted_threads() const;
  void set_io(std::uint64_t bytes) const;
};

/// The value of a --dtype option: "fp32", "bf16" or "fp16"; empty is nullopt.
std::optional<DType> parse_dtype(const std::string& text);

/// Adds `--compress`, for what writes UniShard checkpoints.
void add_compress(CLI::App& command, Compression& compression);

/// Adds `--no-check-input`.
void add_no_check_input(CLI::App& command, bool& check_input);

/// Adds `-t,--tag`.
void add_tag(CLI::App& command, std::optional<std::string>& tag);

void add_zero_to_fp32(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_reshard(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_diff(CLI::App& app, Action& action);
void add_prune(CLI::App& app, Action& action);
void add_launch(CLI::App& app, Action& action);
void add_env(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);

}  // namespace unishard::cli
