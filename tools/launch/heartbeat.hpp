#pragma once
#include "launch/remote_host.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace unishard::tools {

/// A thread that tells the agents once a second that the launcher is alive, also while the launcher
/// waits for a terminal or a pipe that does not take its output. It starts no process, because
/// PR_SET_PDEATHSIG refers to the thread that forked.
class Heartbeat {
 public:
  /// Lifetime: the hosts must outlive this object.
  explicit Heartbeat(const std::vector<std::unique_ptr<RemoteHost>>& hosts) {
    if (hosts.empty()) return;
    thread_ = std::jthread([this, &hosts](const std::stop_token& stop) {
      std::unique_lock lock(mutex_);
      while (!stop.stop_requested()) {
        for (const auto& host : hosts) host->beat();
        stopped_.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
      }
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread thread_;
};

}  // namespace unishard::tools
