#pragma once
// Progress of long work on standard error, and the point at which Ctrl-C takes effect.
#include "unishard/format/observer.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace unishard::cli {

/// Effect of a second signal.
enum class SecondInterrupt : std::uint8_t { Ends, Ignored };
/// Makes SIGINT, SIGTERM and SIGHUP set a flag, on which the next Progress::advance() throws
/// Cancelled, so that unfinished work is cleaned up. A second signal ends the program at once or is
/// ignored.
void catch_interrupts(SecondInterrupt second = SecondInterrupt::Ends);
/// Returns the signal that arrived; SIGTERM when another process of the job received it.
int interrupting_signal();
/// Throws Cancelled when a signal has arrived.
void throw_if_interrupted();

/// Counts, and shows nothing when `quiet` is true. Otherwise draws a bar when standard error is a
/// terminal, or writes lines of JSON when the environment has UNISHARD_PROGRESS=json, for programs
/// that start this one. Thread-safe.
class Progress final : public Observer {
 public:
  explicit Progress(bool quiet);
  ~Progress() override;

  void begin(std::string_view what, std::uint64_t total_bytes) override;
  void advance(std::uint64_t bytes) override;
  void end() override;

  double seconds() const;
  /// Returns, for example, "1.20 GiB in 0.5 s (2.40 GiB/s)" for the work of all processes together.
  std::string summary(std::uint64_t bytes) const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Form : std::uint8_t { Hidden, Bar, Json };
  static Form form_for(bool quiet);
  void show(Clock::time_point now);
  std::string bar(Clock::time_point now) const;

  const Form form_;
  std::atomic<std::uint64_t> done_bytes_{0};
  std::mutex mutex_;  ///< guards the members below
  std::string what_;
  std::uint64_t total_bytes_ = 0;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_{};
  bool is_shown_ = false;
};

}  // namespace unishard::cli
