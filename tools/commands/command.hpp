#pragma once
// Connects a verb to the program: add_<verb>() adds its options, and parsing sets the action that
// main runs.
#include "unishard/converters/source.hpp"
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/compression.hpp"
#include "unishard/format/json.hpp"

#include "commands/processes.hpp"
#include "views/progress.hpp"
#include "workflows/input_path.hpp"
#include "workflows/rules_file.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace unishard::cli {

/// The verb that was requested. `run` returns the exit status: 0, or 1 for differences or damage.
struct Action {
  std::string verb;
  std::function<int()> run;
  std::vector<std::string> words = {};  ///< the program's arguments, verb first
};

/// Calls `run` with what the options of many verbs ask for in place: the words that further
/// processes repeat, and the resources of this process.
template <class Options>
int run_verb(const Action& action, Options& options, int (*run)(const Options&)) {
  if constexpr (requires { options.processes; }) options.processes.command = action.words;
  if constexpr (requires { options.resources.apply(); }) options.resources.apply();
  return run(options);
}

/// Throws: InvalidArgument when an argument or the value of an option is an empty text.
void refuse_empty_values(const CLI::App& command);

/// Adds a verb. `run` receives `options` after parsing.
/// Lifetime: `action` must outlive `app`.
template <class Options>
CLI::App* add_verb(CLI::App& app, Action& action, const std::string& verb,
                   const std::string& description, const std::shared_ptr<Options>& options,
                   int (*run)(const Options&)) {
  CLI::App* command = app.add_subcommand(verb, description);
  command->callback([command, &action, verb, options, run] {
    action.verb = verb;
    refuse_empty_values(*command);
    action.run = [&action, options, run] { return run_verb(action, *options, run); };
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
  /// Returns the value of --memory-limit, or less when `ulimit -v` or `ulimit -d` allows less.
  /// Throws: InvalidArgument when the value is too small; Io when `ulimit` allows too little.
  std::uint64_t memory_bytes() const;
  /// Sets how this process accesses files. Call it before the verb opens a file.
  void apply() const;
  /// Returns buffers and threads that stay within the limit together with the tables of `tensors`
  /// tensors. Also limits the buffers of files that are opened afterwards. The transfer reports to
  /// `progress`.
  TransferOptions transfer(Observer& progress, std::uint64_t tensors = 0,
                           const Compression& compression = {}) const;

 private:
  unsigned wanted_threads() const;
  void set_io(std::uint64_t bytes) const;
};

/// Parses the value of a --dtype option: "fp32", "bf16" or "fp16"; nullopt for an empty text.
std::optional<DType> parse_dtype(const std::string& text);

/// Adds `--compress`, for verbs that write UniShard checkpoints.
void add_compress(CLI::App& command, Compression& compression);

/// Adds `--no-check`, which sets `check` to false, and `--no-check-input`.
/// Lifetime: `check` and `check_input` must outlive `command`.
void add_no_check(CLI::App& command, bool& check, const std::string& help);
void add_no_check_input(CLI::App& command, bool& check_input);

/// Adds `--max-shard-size`, for verbs that write model folders.
void add_max_shard_size(CLI::App& command, std::string& size);

/// Adds an argument that names a checkpoint of any format, also a model in the hub's local cache.
/// Lifetime: `path` must outlive `command`.
template <class Text>
CLI::Option* add_checkpoint(CLI::App& command, const std::string& name, Text& path,
                            const std::string& help =
                                "Folder with `latest`, one tag's folder, a checkpoint of any other "
                                "format, or ORG/NAME in the local cache of the Hugging Face hub") {
  return command.add_option(name, path, help)->required()->transform([](const std::string& text) {
    return tools::find_input(posix_storage(), text);
  });
}

/// Adds `--color`, whose value wants_color() takes.
/// Lifetime: `when` must outlive `command`.
void add_color(CLI::App& command, std::string& when);

/// Adds `-t,--tag`.
void add_tag(CLI::App& command, std::optional<std::string>& tag);

/// Adds --merge-rules, whose file read_merge_rules() reads.
void add_merge_rules(CLI::App& command, std::string& file);
/// Returns null for an empty name.
/// Throws: what read_rules() throws; InvalidArgument for a file without cuts.
Json read_merge_rules(const std::string& file);

/// The names of the parameters in a result.
struct NameOptions {
  std::string layout;
  std::vector<std::string> renames;
  std::string rules;        ///< a file of rules; empty: none
  std::string saved_rules;  ///< the file that gets the rules; empty: none
  /// A model keeps the names of the modules where the hub's files have others.
  bool keeps_module_names = false;

  /// Adds --layout, --rename, --rules, --save-rules and --module-names.
  /// Lifetime: this object must outlive `command`.
  void add_to(CLI::App& command);
  /// Returns what these options and the value of --merge-rules give together.
  /// Throws: InvalidArgument where two of them contradict each other, and what read_rules()
  /// throws; AlreadyExists for the file of --save-rules.
  tools::Rules read(const std::string& merge_rules) const;
  /// Writes the rules that a conversion has used, where that was asked for: `renamed` gave all
  /// names, and `cuts` put tensors together.
  void save(const tools::Rules& given, const std::vector<tools::RenameRule>& renamed,
            Json cuts) const;
};

/// Adds --like.
void add_like(CLI::App& command, std::string& like);
/// Adds --from-rank.
void add_from_rank(CLI::App& command, std::optional<std::uint32_t>& rank);

/// Which of several files a verb that writes a result reads, and what they lack.
struct PartOptions {
  bool may_be_part = false;  ///< the file alone is meant, although it is one of several
  std::optional<std::uint32_t> from_rank = {};
  std::string like = {};  ///< a model; empty: none

  /// Adds --part, --from-rank and --like.
  /// Lifetime: this object must outlive `command`.
  void add_to(CLI::App& command);
  /// Throws: what require_whole() throws, unless a part will do.
  void check(const converters::Source& source) const;
};

void add_zero_to_fp32(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_reshard(CLI::App& app, Action& action);
void add_gather(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_diff(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_prune(CLI::App& app, Action& action);
void add_launch(CLI::App& app, Action& action);
void add_env(CLI::App& app, Action& action);
void add_formats(CLI::App& app, Action& action);
void add_config(CLI::App& app, Action& action);
void add_estimate(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);

}  // namespace unishard::cli
