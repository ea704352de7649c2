#pragma once
// The output of train_gpt. Only rank 0 prints, unless noted otherwise.
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/engine.hpp"
#include "unishard/trainer/recompute.hpp"

#include "options.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace train_gpt {

/// Writes to standard output at once. Any rank. The first failure is a warning on standard error,
/// and std::ferror(stdout) stays set: failing output is no reason to stop a training.
void say(const std::string& text);
/// One write per message, because several ranks may share a terminal. Any rank.
void say_error(std::uint32_t rank, std::string_view kind, std::string_view message,
               std::string_view hint = {});

/// The hint of an error after the last step.
inline constexpr const char* kHarmless =
    "the training itself was completed, and its checkpoints were saved";

void print_header(const Options& options, const unishard::trainer::Engine& engine,
                  const unishard::trainer::RankEnvironment& environment, at::Device device);
/// Returns whether a step gets a permanent line: every `interval`-th (0: none) and each that was
/// skipped.
bool prints_step(std::int64_t interval, const unishard::trainer::StepStats& stats);
/// Reports steps. On a terminal, one line is overwritten, with rate and remaining time. Elsewhere,
/// and every `interval` steps, a permanent line is printed.
class StepPrinter {
 public:
  StepPrinter(std::int64_t steps, std::int64_t interval, std::int64_t tokens_per_step);
  void begin();
  /// Prints, and returns the tokens per second of the step.
  double end(const unishard::trainer::StepStats& stats);

 private:
  using Clock = std::chrono::steady_clock;

  const std::int64_t steps_, interval_, tokens_per_step_;
  const bool on_terminal_;
  Clock::time_point first_, begin_;
  std::int64_t done_ = 0;
};
/// Returns 10^-6 of `bytes`.
double megabytes(std::int64_t bytes);
/// Returns "VmHWM" and the like of this process, in MB; 0 where the system does not tell.
double process_megabytes(const std::string& field);

void print_save(const unishard::trainer::SaveReport& report);
void print_load(const unishard::trainer::LoadReport& report);
/// Says how many steps were left out, if any were.
void print_skipped_steps(const unishard::trainer::Engine& engine);
/// Says what recomputation kept and, when it was measured, how long it took.
void print_recompute(const unishard::trainer::RecomputeStats& stats);
/// Prints a line for every rank. Collective.
void print_memory(const unishard::trainer::Engine& engine,
                  unishard::trainer::Communicator& communicator);

}  // namespace train_gpt
