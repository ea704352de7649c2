#pragma once
// The saves of a run: asynchronous where there is memory for it, reported when they are durable.
// All members are collective and throw what failed on all ranks.
#include "unishard/trainer/engine.hpp"

#include "options.hpp"

#include <optional>

namespace train_gpt {

class Saves {
 public:
  /// All three must outlive this.
  Saves(const Options& options, unishard::trainer::Engine& engine,
        unishard::trainer::Communicator& communicator)
      : options_(options), engine_(engine), communicator_(communicator) {}

  /// Once, before anything else: makes the folder this run's, if the run saves at all.
  void claim();
  /// Once, before training: the names that the run is going to save under must be free, those of
  /// UniShard checkpoints too unless `may_replace`.
  void require_free_names(bool may_replace);
  /// Once, before training: decides whether saves are asynchronous and takes their memory.
  void prepare();
  /// Saves the current step, if the run saves at all.
  void start();
  /// Between steps: prints the last save when it has become durable on all ranks.
  void notice();
  /// Waits for the last save and prints it.
  void finish();

 private:
  const Options& options_;
  unishard::trainer::Engine& engine_;
  unishard::trainer::Communicator& communicator_;
  bool asynchronous_ = false;
  bool may_replace_ = true;
  std::optional<unishard::trainer::SaveHandle> last_;
};

}  // namespace train_gpt
