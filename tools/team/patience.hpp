#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

namespace unishard::tools {

/// Polls for changes that other processes make to files: waits 1 ms at first, then longer each
/// time, at most 100 ms. Not thread-safe.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  /// `check` is called before each wait and may throw to stop waiting; it may be empty.
  /// Lifetime: `check` must outlive this object.
  explicit Patience(const std::function<void()>& check) : check_(check) {}

  Clock::duration waited() const { return Clock::now() - begin_; }
  void wait() {
    if (check_) check_();
    std::this_thread::sleep_for(next_);
    next_ = std::min(2 * next_, std::chrono::milliseconds(100));
  }

 private:
  const std::function<void()>& check_;
  const Clock::time_point begin_ = Clock::now();
  std::chrono::milliseconds next_{1};
};

}  // namespace unishard::tools
