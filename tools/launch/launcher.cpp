// There are no threads that start processes, because PR_SET_PDEATHSIG refers to the thread that
// forked.
#include "launch/launcher.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "launch/attempt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string_view>

namespace unishard::tools {
namespace {

/// Between two attempts, so that a program that fails at once does not keep the hosts busy.
constexpr std::chrono::seconds kPause{1};

void check(const LaunchOptions& options) {
  std::uint64_t ranks = options.hosts.empty() ? options.ranks : 0;
  for (const HostSlots& host : options.hosts) ranks += host.slots.size();
  if (ranks == 0) raise(ErrorCode::InvalidArgument, "the number of ranks is 0");
  if (ranks > limits::kWorldSize) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} ranks are more than {}", ranks, limits::kWorldSize));
  }
  if (options.command.empty())
    raise(ErrorCode::InvalidArgument, "there is no program to start",
          "name it behind the options: unishard launch -n 2 -- PROGRAM [ARGUMENTS]");
  if (!options.node_rank) return;
  if (*options.node_rank >= options.hosts.size()) {
    raise(ErrorCode::InvalidArgument, fmt::format("--node_rank is {}, and there are {} hosts",
                                                  *options.node_rank, options.hosts.size()));
  }
  if (options.max_restarts != 0) {
    raise(ErrorCode::InvalidArgument,
          "--max-restarts needs one launcher for all hosts, and --no_ssh has one on each");
  }
}

/// Status 2 is a wrong option, and 127 a program that is not there: another try ends alike.
bool may_help(const RankFailure& failure) {
  return failure.signal != 0 || (failure.exit_code != 2 && failure.exit_code != 127);
}

std::string restart_text(const LaunchOptions& options, const RankFailure& failure,
                         const std::vector<HostSlots>& hosts, std::uint32_t restart) {
  std::size_t ranks = hosts.empty() ? options.ranks : 0;
  for (const HostSlots& host : hosts) ranks += host.slots.size();
  return fmt::format("{}; starting again with {} {}{} (restart {} of {})", failure.text(), ranks,
                     ranks == 1 ? "rank" : "ranks",
                     hosts.size() < 2 ? "" : fmt::format(" on {} hosts", hosts.size()), restart,
                     options.max_restarts);
}

void note(const LaunchOptions& options, const std::string& text) {
  if (options.on_note) options.on_note(text);
}

/// Ends this process by a signal that came when no rank could answer it.
void end_by(int number, std::optional<SignalQueue>& signals) {
  signals.reset();  // unblocks it
  ::raise(number);
}

/// Runs attempts until one is the last.
AttemptResult run_attempts(const LaunchOptions& options, std::optional<SignalQueue>& signals,
                           RankOutput& output) {
  std::vector<HostSlots> hosts = options.hosts;
  for (std::uint32_t restart = 0;; ++restart) {
    AttemptResult result = Attempt(options, hosts, restart, *signals, output).run();
    std::erase_if(hosts, [&](const HostSlots& host) {
      return std::ranges::count(result.lost_hosts, host.name) != 0;
    });
    const bool is_last = !result.failure || result.stopped_by || restart == options.max_restarts ||
                         !may_help(*result.failure);
    if (is_last) return result;
    if (hosts.empty() && !options.hosts.empty()) {
      note(options, "no host is left, so the job does not start again");
      return result;
    }
    note(options, restart_text(options, *result.failure, hosts, restart + 1));
    result.stopped_by = signals->wait(kPause);
    result.has_started = false;
    if (result.stopped_by) return result;
  }
}

}  // namespace

std::optional<RankFailure> launch(const LaunchOptions& options) {
  check(options);
  ::signal(SIGCHLD, SIG_DFL);  // where a parent ignores it, no rank could be waited for
  RankOutput output(options.prefix_output || options.hosts.size() > 1, options.log_folder);
  std::optional<SignalQueue> signals(std::in_place);
  const AttemptResult result = run_attempts(options, signals, output);
  if (result.stopped_by && !result.has_started) end_by(*result.stopped_by, signals);
  if (!result.failure && output.failure() != 0) {
    raise(ErrorCode::Io,
          fmt::format("output of the ranks could not be written: {}", ::strerror(output.failure())),
          "the ranks ran to their end");
  }
  return result.failure;
}

}  // namespace unishard::tools
