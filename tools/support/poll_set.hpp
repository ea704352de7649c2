#pragma once
#include <poll.h>

#include <chrono>
#include <functional>
#include <vector>

namespace unishard::tools {

/// The descriptors of one poll(), each with what is called when it is ready. Not thread-safe.
class PollSet {
 public:
  void add(int descriptor, short events, std::function<void()> on_ready) {
    polled_.push_back({descriptor, events, 0});
    on_ready_.push_back(std::move(on_ready));
  }

  /// Waits until a descriptor is ready, or has failed, and calls what belongs to each that is.
  /// Returns without a call after `limit`, or when a signal arrives.
  void wait(std::chrono::milliseconds limit) {
    if (::poll(polled_.data(), polled_.size(), static_cast<int>(limit.count())) <= 0) return;
    for (std::size_t i = 0; i < polled_.size(); ++i) {
      if (polled_[i].revents != 0) on_ready_[i]();
    }
  }

 private:
  std::vector<pollfd> polled_;
  std::vector<std::function<void()>> on_ready_;
};

}  // namespace unishard::tools
