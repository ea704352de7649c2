#include "launch/rank_failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string_view>
#include <utility>

namespace unishard::tools {
namespace {

/// Returns the name of a signal that ends processes. (sigabbrev_np() needs glibc 2.32.)
std::string_view signal_name(int signal) {
  constexpr auto kNames = std::to_array<std::pair<int, std::string_view>>({{SIGHUP, "SIGHUP"},
                                                                           {SIGINT, "SIGINT"},
                                                                           {SIGQUIT, "SIGQUIT"},
                                                                           {SIGILL, "SIGILL"},
                                                                           {SIGTRAP, "SIGTRAP"},
                                                                           {SIGABRT, "SIGABRT"},
                                                                           {SIGBUS, "SIGBUS"},
                                                                           {SIGFPE, "SIGFPE"},
                                                                           {SIGKILL, "SIGKILL"},
                                                                           {SIGUSR1, "SIGUSR1"},
                                                                           {SIGSEGV, "SIGSEGV"},
                                                                           {SIGUSR2, "SIGUSR2"},
                                                                           {SIGPIPE, "SIGPIPE"},
                                                                           {SIGALRM, "SIGALRM"},
                                                                           {SIGTERM, "SIGTERM"},
                                                                           {SIGXCPU, "SIGXCPU"},
                                                                           {SIGXFSZ, "SIGXFSZ"},
                                                                           {SIGSYS, "SIGSYS"}});
  const auto* const found =
      std::ranges::find(kNames, signal, &std::pair<int, std::string_view>::first);
  return found != kNames.end() ? found->second : "SIG?";
}

}  // namespace

std::string RankFailure::text() const {
  if (!lost.empty()) return fmt::format("host {}: {}", host, lost);
  const std::string who = host.empty() ? fmt::format("rank {} (pid {})", rank, pid)
                                       : fmt::format("rank {} (pid {} on {})", rank, pid, host);
  if (signal == 0) return fmt::format("{} exited with status {}", who, exit_code);
  return fmt::format("{} was killed by signal {} ({})", who, signal, signal_name(signal));
}

}  // namespace unishard::tools
