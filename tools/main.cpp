// The program `unishard`: a tree of verbs. This file parses, runs the chosen verb, and turns what
// it threw into a message and an exit status:
//   0 done   1 differences or damage found   2 usage   3 environment   4 corrupt or unsupported   5
//   internal
#include "unishard/format/error.hpp"
#include "unishard/format/version.hpp"

#include "commands/command.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <new>

namespace {

using unishard::cli::Action;

constexpr int kUsage = 2;
constexpr int kInternal = 5;

/// --memory-limit is about resident memory: few arenas, and freed buffers go back to the system.
void bound_allocator() {
  ::mallopt(M_ARENA_MAX, 2);
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

/// A checkpoint of many ranks has as many open files.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void print_error(const std::string& verb, std::string_view message, std::string_view hint) {
  fmt::print(stderr, "unishard{}{}: error: {}\n", verb.empty() ? "" : " ", verb, message);
  if (!hint.empty()) fmt::print(stderr, "  hint: {}\n", hint);
}

void build(CLI::App& app, Action& action) {
  app.name("unishard");
  app.set_version_flag("--version",
                       fmt::format("unishard {} (checkpoint format {} written, {} to {} read)",
                                   unishard::kLibraryVersion, unishard::kFormatVersion,
                                   unishard::kOldestReadableVersion, unishard::kFormatVersion));
  app.require_subcommand(1);
  app.footer(
      "`unishard VERB --help` shows the options of a verb and examples.\n"
      "Exit status: 0 done, 1 differences or damage found, 2 usage, 3 environment,\n"
      "             4 corrupt or unsupported, 5 internal error.\n");
  for (const auto add :
       {unishard::cli::add_zero_to_fp32, unishard::cli::add_convert, unishard::cli::add_reshard,
        unishard::cli::add_inspect, unishard::cli::add_verify, unishard::cli::add_diff,
        unishard::cli::add_prune, unishard::cli::add_launch, unishard::cli::add_env,
        unishard::cli::add_completion}) {
    add(app, action);
  }
}

/// Removes the `--` that may stand before the program of `launch`: CLI11 would take what follows
/// for its own.
void drop_separator(std::vector<std::string>& words) {
  if (words.empty() || words.front() != "launch") return;
  for (std::size_t i = 1; i < words.size() && words[i].starts_with('-'); ++i) {
    if (words[i] == "--") {
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    const bool is_flag = words[i].find('=') != std::string::npos || words[i] == "--tee" ||
                         words[i].starts_with("--prefix") || words[i] == "-h" ||
                         words[i] == "--help";
    if (!is_flag) ++i;  // its value
  }
}

/// DeepSpeed users have a script called zero_to_fp32: the program answers to that name too.
std::vector<std::string> arguments(int argc, char** argv) {
  std::vector<std::string> out(argv + 1, argv + argc);
  const std::string name = argc > 0 ? std::filesystem::path(argv[0]).stem().string() : "";
  if (name == "zero_to_fp32") out.insert(out.begin(), name);
  drop_separator(out);
  return out;
}

int report_usage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  const auto chosen = app.get_subcommands();
  const std::string verb = chosen.empty() ? "" : chosen.front()->get_name();
  print_error(
      verb, error.what(),
      fmt::format("unishard{}{} --help shows what is expected", verb.empty() ? "" : " ", verb));
  return kUsage;
}

int run(const Action& action) {
  try {
    return action.run();
  } catch (const unishard::Error& error) {
    print_error(action.verb, error.what(), error.hint());
    return unishard::cli::status_of(error);
  } catch (const std::bad_alloc& error) {
    print_error(action.verb, "out of memory", "use fewer --threads or a smaller --memory-limit");
    return unishard::cli::status_of(error);
  } catch (const std::exception& error) {
    print_error(action.verb, fmt::format("internal: {}", error.what()), "please report this");
    return unishard::cli::status_of(error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bound_allocator();
  raise_file_limit();
  CLI::App app("Checkpoint tools for ZeRO training", "unishard");
  Action action;
  try {
    build(app, action);
    std::vector<std::string> words = arguments(argc, argv);
    if (words.empty()) {
      fmt::print(stderr, "{}", app.help());
      return kUsage;
    }
    action.words = words;
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error);
  } catch (const std::exception& error) {
    print_error({}, error.what(), {});
    return kInternal;
  }
  return run(action);
}
