#pragma once
// What train_gpt prints. Rank 0 only, save where noted.
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/engine.hpp"

#include "options.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace train_gpt {

/// Any rank. Writes on standard output at once. The first failure is a warning on standard error,
/// and std::ferror(stdout) holds from then on: what is printed is no reason to stop a training.
void say(const std::string& text);
/// Any rank. One write per message, since several ranks may share one terminal.
void say_error(std::uint32_t rank, std::string_view kind, std::string_view message,
               std::string_view hint = {});

void print_header(const Options& options, const unishard::trainer::Engine& engine,
                  const unishard::trainer::RankEnvironment& environment);
/// Steps as they are done: on a terminal one line that is written over and over, with rate and time
/// left; elsewhere, and every `interval` steps, a line that stays.
class StepPrinter {
 public:
  StepPrinter(std::int64_t steps, std::int64_t interval, std::int64_t tokens_per_step);
  void begin();
  /// Prints; returns the tokens per second of the step.
  double end(const unishard::trainer::StepStats& stats);

 private:
  using Clock = std::chrono::steady_clock;

  const std::int64_t steps_, interval_, tokens_per_step_;
  const bool on_terminal_;
  Clock::time_point first_, begin_;
  std::int64_t done_ = 0;
};
void print_save(const unishard::trainer::SaveReport& report);
void print_load(const unishard::trainer::LoadReport& report);
/// Collective: a line for every rank.
void print_memory(const unishard::trainer::Engine& engine,
                  unishard::trainer::Communicator& communicator);

}  // namespace train_gpt
