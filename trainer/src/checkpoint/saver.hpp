#pragma once
// An engine's saves, synchronous and asynchronous, one at a time.
//
// An asynchronous save:
//  1. The save before it is waited for; if it failed and no rank has been told, all throw now.
//  2. All that the ranks decide together about this step is decided: which weights are derived, the
//     save id. Rank 0 makes the folder for the shards.
//  3. Each rank copies what it writes (Staging), and all agree that they could. Training goes on.
//  4. A thread writes the shard and commits. It talks to the other ranks' threads over a group of
//     its own, since the training group is in use; it touches no tensor.
// A crash in 4 leaves what a crash in a synchronous save leaves: the checkpoints that were there,
// and a folder that no reader looks into.
#include "unishard/format/output_lock.hpp"
#include "unishard/trainer/engine.hpp"

#include "checkpoint/save.hpp"
#include "checkpoint/save_outcome.hpp"
#include "checkpoint/staging.hpp"

#include <chrono>
#include <map>
#include <memory>
#include <thread>

namespace unishard::trainer::detail {

/// Belongs to the training thread. The destructor waits for the last save and drops its error.
class Saver {
 public:
  /// All three must outlive this.
  Saver(const TrainingState& state, Communicator& communicator, const EngineOptions& options)
      : state_(state), communicator_(communicator), options_(options) {}

  void claim(const Path& folder);               ///< Engine::claim_save_folder()
  SaveHandle save(const SaveRequest& request);  ///< Engine::save_checkpoint()
  void prepare();                               ///< Engine::prepare_asynchronous_saves()
  /// Waits until no save is under way. Local; an error stays for whoever asks for it.
  void finish();

  /// What an asynchronous save would stage here.
  std::uint64_t bytes_to_stage() const;
  std::uint64_t staging_bytes() const { return staging_.capacity_bytes(); }

 private:
  using Clock = std::chrono::steady_clock;

  void settle();
  void make_group();
  void save_behind(std::unique_ptr<Save> save, const LocalState& local, Clock::time_point started);

  const TrainingState& state_;
  Communicator& communicator_;
  const EngineOptions& options_;
  std::map<Path, OutputLock> claims_;  ///< of rank 0, by folder
  Staging staging_;
  std::unique_ptr<Communicator> group_;  ///< of the threads that save
  std::shared_ptr<SaveOutcome> last_;    ///< of the last asynchronous save, until it is settled
  std::jthread thread_;                  ///< last: it uses the others
};

}  // namespace unishard::trainer::detail
