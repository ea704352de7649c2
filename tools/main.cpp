// The program `unishard`: a tree of verbs. This file parses the command line, runs the chosen verb,
// and turns an exception into a message and an exit status:
//   0 done   1 differences or damage found   2 usage   3 environment   4 corrupt   5 internal
//   6 not supported
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"
#include "unishard/format/version.hpp"

#include "commands/command.hpp"
#include "support/heap_limit.hpp"
#include "support/machine.hpp"
#include "support/nearest_word.hpp"
#include "support/size_text.hpp"
#include "views/terminal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <limits>
#include <new>
#include <sstream>

namespace {

using unishard::cli::Action;

constexpr int kUsage = 2;
constexpr int kInternal = 5;

/// --memory-limit limits resident memory, so there are few arenas, and freed buffers return to the
/// system. A second arena maps 64 MiB at once, which a limit on address space cannot spare.
void bound_allocator() {
  const bool is_limited =
      unishard::tools::mappable_bytes() != std::numeric_limits<std::uint64_t>::max();
  ::mallopt(M_ARENA_MAX, is_limited ? 1 : 2);
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

/// Raises the limit of open files, because a checkpoint of many ranks has as many.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Opens a stand-in for each closed standard stream, so that no file that is opened later becomes
/// standard output or error. The stand-in has the wrong direction, so using a closed stream fails.
void occupy_standard_descriptors() {
  for (int wanted = STDIN_FILENO; wanted <= STDERR_FILENO; ++wanted) {
    if (::fcntl(wanted, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", wanted == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened >= 0 && opened != wanted) ::close(opened);
  }
}

/// Turns failed writes (EPIPE, EFBIG) into errors with a message instead of signals.
void turn_signals_into_errors() {
  for (const int number : {SIGPIPE, SIGXFSZ}) ::signal(number, SIG_IGN);
}

/// Ends the program with a message instead of a backtrace when a destructor runs out of memory.
[[noreturn]] void on_terminate() {
  const bool is_exceeded = unishard::cli::exceeded_heap_limit() != 0;
  const std::string_view text =
      is_exceeded ? "unishard: error: the input takes more memory than --memory-limit allows\n"
                  : "unishard: error: internal: the program cannot go on\n";
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) ::_exit(kInternal);
  ::_exit(is_exceeded ? unishard::exit_status(unishard::ErrorCode::MemoryLimit) : kInternal);
}

using unishard::ErrorCode;
using unishard::cli::say_error;

void build(CLI::App& app, Action& action) {
  app.name("unishard");
  app.set_version_flag("-v,--version",
                       fmt::format("unishard {} (checkpoint format {} written, {} to {} read)",
                                   unishard::kLibraryVersion, unishard::kFormatVersion,
                                   unishard::kOldestReadableVersion, unishard::kFormatVersion));
  app.require_subcommand(1);
  app.footer(
      "`unishard VERB --help` shows the options of a verb and examples.\n"
      "Exit status: 0 done, 1 differences or damage found, 2 usage, 3 environment,\n"
      "             4 corrupt, 5 internal error, 6 not supported.\n");
  for (const auto add :
       {unishard::cli::add_zero_to_fp32, unishard::cli::add_convert, unishard::cli::add_reshard,
        unishard::cli::add_gather, unishard::cli::add_inspect, unishard::cli::add_verify,
        unishard::cli::add_diff, unishard::cli::add_report, unishard::cli::add_prune,
        unishard::cli::add_launch, unishard::cli::add_config, unishard::cli::add_estimate,
        unishard::cli::add_env, unishard::cli::add_formats, unishard::cli::add_completion}) {
    add(app, action);
  }
}

/// Returns true when the option is given without a value in the next word.
bool takes_no_word(const CLI::App& verb, const std::string& word) {
  const bool is_short = !word.starts_with("--");
  if (word.find('=') != std::string::npos || (is_short && word.size() > 2)) return true;
  const CLI::Option* const option = verb.get_option_no_throw(word);
  return option != nullptr && option->get_items_expected_max() == 0;
}

/// Removes the `--` that may precede the program of `launch`, because CLI11 would consume it and
/// the arguments after it.
void drop_separator(const CLI::App& app, std::vector<std::string>& words) {
  if (words.empty() || words.front() != "launch") return;
  const CLI::App& verb = *app.get_subcommand("launch");
  for (std::size_t i = 1; i < words.size() && words[i].starts_with('-'); ++i) {
    if (words[i] == "--") {
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    if (!takes_no_word(verb, words[i])) ++i;  // its value
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

/// `help`, `help VERB` and `version` are the flags that many programs have as verbs.
void take_words_for_flags(std::vector<std::string>& words) {
  if (words.empty()) return;
  if (words.front() == "version") words = {"--version"};
  if (words.front() != "help") return;
  words.erase(words.begin());
  words.emplace_back("--help");
}

/// DeepSpeed users have a script called zero_to_fp32: the program answers to that name too.
std::vector<std::string> arguments(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> out(argv + 1, argv + argc);
  const std::string name = argc > 0 ? std::filesystem::path(argv[0]).stem().string() : "";
  if (name == "zero_to_fp32") out.insert(out.begin(), name);
  take_words_for_flags(out);
  drop_separator(app, out);
  return out;
}

int report_unknown_verb(const CLI::App& app, const std::string& word) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (!verb->get_group().empty()) verbs.push_back(verb->get_name());  // "": not shown
  }
  const std::string nearest = unishard::tools::nearest_word(word, verbs);
  say_error("", ErrorCode::InvalidArgument,
            fmt::format("there is no verb {}", unishard::quote(word)),
            fmt::format("{}unishard --help lists the verbs",
                        nearest.empty() ? "" : fmt::format("do you mean {}? ", nearest)));
  return kUsage;
}

/// Names the first word that `verb` does not know, and the option that was perhaps meant.
int report_unknown_word(const CLI::App& verb, const std::string& word) {
  std::vector<std::string> options;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  }
  const std::string option = word.substr(0, word.find('='));
  const std::string nearest =
      option.starts_with("--") ? unishard::tools::nearest_word(option, options) : "";
  say_error(verb.get_name(), ErrorCode::InvalidArgument,
            fmt::format("unknown argument {}", unishard::quote(word)),
            fmt::format("{}unishard {} --help shows what is expected",
                        nearest.empty() ? "" : fmt::format("do you mean {}? ", nearest),
                        verb.get_name()));
  return kUsage;
}

/// Returns an option that was given an empty value, which makes the next word its value; empty when
/// there is none.
std::string option_without_value(const std::vector<std::string>& words) {
  const auto found = std::ranges::find_if(words, [](const std::string& word) {
    return word.starts_with("--") && word.find('=') == word.size() - 1;
  });
  return found == words.end() ? "" : found->substr(0, found->size() - 1);
}

int report_usage(const CLI::App& app, const Action& action, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {  // --help, --version
    std::ostringstream text;
    app.exit(error, text, text);
    unishard::cli::print(text.str());
    return 0;
  }
  const auto chosen = app.get_subcommands();
  if (chosen.empty() && !action.words.empty() && !action.words.front().starts_with('-'))
    return report_unknown_verb(app, action.words.front());
  const bool has_unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (has_unknown && !chosen.empty() && !chosen.front()->remaining().empty())
    return report_unknown_word(*chosen.front(), chosen.front()->remaining().front());
  const std::string verb = chosen.empty() ? "" : chosen.front()->get_name();
  if (const std::string option = option_without_value(action.words); !option.empty()) {
    say_error(verb, ErrorCode::InvalidArgument, fmt::format("{} has no value", option),
              "give it one, or leave it out: a variable of the shell may be empty");
    return kUsage;
  }
  say_error(
      verb, ErrorCode::InvalidArgument, error.what(),
      fmt::format("unishard{}{} --help shows what is expected", verb.empty() ? "" : " ", verb));
  return kUsage;
}

void report(const Action& action, const std::exception& error) {
  if (dynamic_cast<const unishard::cli::ClosedPipe*>(&error) != nullptr) return;
  const int status = unishard::cli::status_of(error);
  if (const auto* own = dynamic_cast<const unishard::Error*>(&error)) {
    say_error(action.verb, own->code(), own->what(), own->hint());
  } else if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) {
    const bool is_bug = status == kInternal;
    say_error(action.verb, is_bug ? ErrorCode::Internal : ErrorCode::Io,
              fmt::format("{}{}", is_bug ? "internal: " : "", error.what()),
              is_bug ? "please report this" : "");
  } else if (const std::uint64_t limit = unishard::cli::exceeded_heap_limit(); limit != 0) {
    say_error(action.verb, ErrorCode::MemoryLimit,
              fmt::format("the input takes more memory than --memory-limit allows ({})",
                          unishard::tools::format_bytes(limit)),
              "allow more; a small file that needs this much is damaged or hostile");
  } else {
    say_error(action.verb, ErrorCode::MemoryLimit, "out of memory",
              "use fewer --threads or a smaller --memory-limit");
  }
}

int run(const Action& action) {
  try {
    return action.run();
  } catch (const std::exception& error) {
    report(action, error);
    return unishard::cli::status_of(error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(on_terminate);
  occupy_standard_descriptors();
  turn_signals_into_errors();
  bound_allocator();
  raise_file_limit();
  CLI::App app("Checkpoint tools for ZeRO training", "unishard");
  Action action;
  try {
    build(app, action);
    std::vector<std::string> words = arguments(app, argc, argv);
    if (words.empty()) {
      for (const std::string& line : lines_of(app.help())) unishard::cli::say(line);
      return kUsage;
    }
    action.words = words;
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return run({.verb = action.verb, .run = [&] { return report_usage(app, action, error); }});
  } catch (const std::exception& error) {  // of an argument that is no checkpoint
    if (const auto chosen = app.get_subcommands(); !chosen.empty())
      action.verb = chosen.front()->get_name();
    report(action, error);
    return unishard::cli::status_of(error);
  }
  return run(action);
}
