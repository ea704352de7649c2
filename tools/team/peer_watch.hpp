#pragma once
// Whether the other processes of a team still live.
#include "team/team_folder.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace unishard::tools {

/// Thread-safe.
class PeerWatch {
 public:
  PeerWatch(const TeamFolder& folder, std::uint32_t rank, std::chrono::milliseconds silence_limit);

  /// Tells the others that this process lives.
  void beat();
  /// Why `rank` must be taken for dead: its process is gone from this machine, or has not been
  /// heard of for the limit, counted from the first look. Else nullopt.
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
  const std::string machine_;  ///< and its space of process numbers
  std::mutex mutex_;           ///< guards the rest
  std::uint64_t beats_ = 0;
  std::map<std::uint32_t, Peer> peers_;
};

}  // namespace unishard::tools
