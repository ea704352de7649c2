#pragma once
// The saves of a run: asynchronous if there is memory for it, reported once they are durable. All
// members are collective and throw on all ranks when one fails.
#include "unishard/converters/save_folder.hpp"
#include "unishard/trainer/engine.hpp"

#include "options.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

namespace train_gpt {

class Saves {
 public:
  /// `client_state` goes into every checkpoint. Lifetime: all other arguments must outlive this
  /// object.
  Saves(const Options& options, unishard::trainer::Engine& engine,
        unishard::trainer::Communicator& communicator, unishard::Json client_state)
      : options_(options),
        engine_(engine),
        communicator_(communicator),
        client_state_(std::move(client_state)) {}

  /// Locks the folder for this run if the run saves at all. Call it once, before everything else.
  void claim();
  /// Checks that the names of the run's saves are free, and keeps from now on what `start`
  /// protects: beside something else no checkpoint may be replaced, beside whole ones --keep-last
  /// removes nothing. Call it once, before training.
  void require_free_names(const unishard::converters::ResumeDecision& start);
  /// Decides whether saves are asynchronous, and allocates their memory. Call it once, before
  /// training.
  void prepare();
  /// Saves the current step, if the run saves at all.
  void start();
  /// Returns true when no save is under way on this rank.
  bool are_done() const { return !last_ || last_->finished(); }
  /// Waits for the last save and prints it.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  /// Says once which --save-interval would be long enough, when the save before, which took
  /// `save_seconds`, was not done after steps of `step_seconds` each.
  void note_short_interval(double save_seconds, double step_seconds);

  const Options& options_;
  unishard::trainer::Engine& engine_;
  unishard::trainer::Communicator& communicator_;
  unishard::Json client_state_;
  bool asynchronous_ = false;
  std::int64_t started_step_ = -1;  ///< of the last save; a skipped step does not save it again
  unishard::converters::ResumeDecision start_;
  std::optional<unishard::trainer::SaveHandle> last_;
  Clock::time_point goes_on_ = Clock::now();  ///< when training went on after the last save
  bool has_noted_interval_ = false;
};

}  // namespace train_gpt
