#pragma once
// An engine's saves, synchronous and asynchronous, one at a time.
//
// An asynchronous save:
// clang-format off
//  1. Waits for the previous save. If that failed and no rank was told, all ranks throw now.
//  2. Decides everything that the ranks decide together about this step: which weights are derived,
//     and the save id. Rank 0 creates the staging folder.
//  3. Each rank copies what user code can change of what it writes (Staging), and all agree that they
//     could. Training continues, and the rest is copied until the next update, which waits for it.
//  4. A thread waits for the copies, writes the shard and commits. It uses a process group of its own, because training
//     uses the other one, and it accesses no tensor.
// clang-format on
// A crash in step 4 leaves the same as a crash in a synchronous save: the existing checkpoints, and
// a folder that readers skip.
#include "unishard/format/output_lock.hpp"
#include "unishard/trainer/checkpointing.hpp"

#include "checkpoint/save.hpp"
#include "checkpoint/save_outcome.hpp"
#include "checkpoint/staging.hpp"

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <thread>

namespace unishard::trainer::detail {

/// Belongs to the training thread. The destructor waits for the last save and ignores its error.
class Saver {
 public:
  /// Lifetime: all arguments must outlive this object.
  Saver(const TrainingState& state, Communicator& communicator, const EngineOptions& options,
        Runtime& runtime)
      : state_(state),
        communicator_(communicator),
        options_(options),
        device_(runtime.device()),
        staging_(runtime) {}

  void claim(const Path& folder);               ///< Engine::claim_save_folder()
  SaveHandle save(const SaveRequest& request);  ///< Engine::save_checkpoint()
  void prepare();                               ///< Engine::prepare_asynchronous_saves()
  /// Makes Compute wait until the last save has a copy of what the engine is about to change.
  void before_change() { staging_.before_change(); }
  /// Waits until no save is running. Not collective. An error remains for the next caller that asks
  /// for it.
  void finish();

  /// Returns the bytes that an asynchronous save stages on this rank.
  std::uint64_t bytes_to_stage() const;
  std::uint64_t staging_bytes() const { return staging_.capacity_bytes(); }

 private:
  using Clock = std::chrono::steady_clock;

  void settle();
  void make_group();
  /// When a call of save() began, and how long it waited for the save before.
  struct Call {
    Clock::time_point started;
    double waited = 0;
  };
  void save_behind(std::unique_ptr<Save> save, const LocalState& local, const Call& call);

  const TrainingState& state_;
  Communicator& communicator_;
  const EngineOptions& options_;
  const at::Device device_;
  /// By folder; the first rank of each node has the lock.
  std::map<Path, std::optional<OutputLock>> claims_;
  Staging staging_;
  std::optional<PinnedBuffers> buffers_;  ///< for saves that training waits for; from the first on
  /// The process group of the saving threads.
  std::unique_ptr<Communicator> group_;
  /// The outcome of the last asynchronous save, until settle().
  std::shared_ptr<SaveOutcome> last_;
  std::jthread thread_;  ///< last: it uses the others
};

}  // namespace unishard::trainer::detail
