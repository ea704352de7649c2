#pragma once
// Progress of long work as one line on standard error, and the place where Ctrl-C takes effect.
#include "unishard/format/observer.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace unishard::cli {

/// What a second signal does.
enum class SecondInterrupt : std::uint8_t { Ends, Ignored };
/// After this, SIGINT, SIGTERM and SIGHUP make the next Progress::advance() throw Cancelled, so
/// that what was begun is cleaned up; a second one ends the program at once, or is ignored from now
/// on.
void catch_interrupts(SecondInterrupt second = SecondInterrupt::Ends);
/// The signal that came; SIGTERM when it came to another process of the job.
int interrupting_signal();
/// Throws Cancelled when a signal has come.
void throw_if_interrupted();

/// Draws when standard error is a terminal and `quiet` is false; counts in any case. Thread-safe.
class Progress final : public Observer {
 public:
  explicit Progress(bool quiet);
  ~Progress() override;

  void begin(std::string_view what, std::uint64_t total_bytes) override;
  void advance(std::uint64_t bytes) override;
  void end() override;

  double seconds() const;
  /// "1.20 GiB in 0.5 s (2.40 GiB/s)", of what all processes did together.
  std::string summary(std::uint64_t bytes) const;

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);

  const bool visible_;
  std::atomic<std::uint64_t> done_bytes_{0};
  std::mutex mutex_;  ///< guards the rest
  std::string what_;
  std::uint64_t total_bytes_ = 0;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point drawn_{};
  bool is_drawn_ = false;
};

}  // namespace unishard::cli
