#pragma once
#include "team/team_folder.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace unishard::tools {

/// Detects whether the other processes of a team are alive. Thread-safe.
class PeerWatch {
 public:
  /// Lifetime: `folder` must outlive this object.
  PeerWatch(const TeamFolder& folder, std::uint32_t rank, std::chrono::milliseconds silence_limit);

  /// Renews this process's heartbeat.
  void beat();
  /// Returns why `rank` must be considered dead: its process no longer exists on this machine, or
  /// its heartbeat has not changed for the limit since the first look. Otherwise nullopt.
  std::optional<std::string> look(std::uint32_t rank);

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    std::string last;
    Clock::time_point heard = Clock::now();
  };

  const TeamFolder& folder_;
  const std::uint32_t rank_;
  const std::chrono::milliseconds silence_limit_;
  /// This machine and its namespace of process ids.
  const std::string machine_;
  std::mutex mutex_;  ///< guards the members below
  std::uint64_t beats_ = 0;
  std::map<std::uint32_t, Peer> peers_;
};

}  // namespace unishard::tools
