#pragma once
// Waiting for what other processes do to files: looking again, soon at first and then less often.
#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

namespace unishard::tools {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  /// `check` is called before each wait and may throw; it may be empty.
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
