#include "team/peer_watch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <fstream>

namespace unishard::tools {
namespace {

constexpr std::uint64_t kAliveBytes = 1024;

std::string alive_of(std::uint32_t rank) { return fmt::format("alive-{}", rank); }

/// Returns a text that is equal in two processes exactly when kill() in one can reach the other.
std::string machine_of_this_process() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 128> space{};
  const ssize_t count = ::readlink("/proc/self/ns/pid", space.data(), space.size());
  if (boot.empty() || count <= 0) return {};
  return boot + "/" + std::string(space.data(), static_cast<std::size_t>(count));
}

/// "<process> <beats> <machine>"
std::optional<pid_t> process_on(const std::string& machine, const std::string& alive) {
  if (machine.empty() || !alive.ends_with(" " + machine)) return std::nullopt;
  pid_t process = 0;
  const auto [at, error] = std::from_chars(alive.data(), alive.data() + alive.size(), process);
  return error == std::errc() && process > 0 ? std::optional(process) : std::nullopt;
}

}  // namespace

PeerWatch::PeerWatch(const TeamFolder& folder, std::uint32_t rank,
                     std::chrono::milliseconds silence_limit)
    : folder_(folder),
      rank_(rank),
      silence_limit_(silence_limit),
      machine_(machine_of_this_process()) {}

void PeerWatch::beat() {
  const std::lock_guard lock(mutex_);
  folder_.put(alive_of(rank_), fmt::format("{} {} {}", ::getpid(), ++beats_, machine_));
}

std::optional<std::string> PeerWatch::look(std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[rank];
  const auto alive = folder_.get(alive_of(rank), kAliveBytes);
  if (alive && *alive != peer.last) peer = {.last = *alive};
  if (const auto process = process_on(machine_, peer.last)) {
    if (::kill(*process, 0) != 0 && errno == ESRCH)
      return fmt::format("rank {} (process {}) terminated unexpectedly", rank, *process);
  }
  if (Clock::now() - peer.heard <= silence_limit_) return std::nullopt;
  return fmt::format("rank {} has been silent for {:g} s", rank,
                     std::chrono::duration<double>(silence_limit_).count());
}

}  // namespace unishard::tools
