#pragma once
// The ZeRO engine: shares a model's training state out over the ranks, runs steps, saves and loads.
// All members are collective (every rank calls them in the same order) unless noted, and belong to
// one thread. The engine must outlive every autograd graph of its model.
//
// Order of sums: global micro-batches are dealt round-robin and their gradients added in their
// order, norms are summed over fixed blocks, the loss over micro-batches; so at stages 2 and 3 (and
// below with "canonical_order") losses and weights have the same bits for every world size and
// stage. Equal thread count, LibTorch and CPU type are assumed.
#include "unishard/format/commit.hpp"
#include "unishard/format/compression.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/foreign_names.hpp"
#include "unishard/trainer/save_handle.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace unishard::trainer {

/// One global micro-batch, the same on every world size.
struct MicroBatch {
  std::int64_t step = 0;           ///< optimizer steps done
  std::int64_t id = 0;             ///< 0 to global_micro_batches - 1
  std::uint64_t first_sample = 0;  ///< global sample index; the run's first sample is 0
  std::int64_t samples = 0;
};

/// The mean loss of a micro-batch as a scalar tensor. It must depend on nothing but its argument
/// and the parameters.
using LossFunction = std::function<at::Tensor(const MicroBatch&)>;

struct StepStats {
  std::int64_t step = 0;  ///< steps done, this one included
  double loss = 0;        ///< before the update
  double gradient_norm = 0;
  double learning_rate = 0;
};

/// Bytes on this rank, as counted by the engine (activations and LibTorch's own buffers are not).
struct MemoryReport {
  std::int64_t parameters = 0;       ///< flat parameters that have memory now
  std::int64_t parameters_peak = 0;  ///< the most at any time, construction included
  std::int64_t master = 0;           ///< fp32 weights, where they are not the parameters themselves
  std::int64_t optimizer = 0;
  std::int64_t gradients = 0;  ///< accumulators
  std::int64_t staging = 0;    ///< copy of the state for asynchronous saves, kept for the next one
};

struct SaveRequest {
  Path folder;
  std::string tag{};  ///< empty: "global_step<N>"
  Json client_state = nullptr;
  std::uint32_t keep_last = 0;
  bool move_latest = true;
  bool replace = true;  ///< a UniShard checkpoint that has this tag
  /// save_checkpoint() returns when the state is copied; the copy is written in the background.
  bool asynchronous = false;
  Compression compression{};
  /// Chunks that the checkpoint which `latest` names holds as well are not written again: the new
  /// one names their files too. Of the same world size; else, and where the file system has no hard
  /// links, everything is written. One damaged byte on the disk then damages all that share it.
  bool incremental = false;
};

struct LoadReport {
  std::string tag;
  std::int64_t step = 0;
  std::uint32_t saved_world_size = 0;
  std::uint32_t saved_stage = 0;
  Json client_state;
  std::vector<std::string> notes;  ///< e.g. reasons for which bits may differ from the saved run's
};

struct EngineOptions {
  Storage* storage = nullptr;  ///< null: posix_storage()
  /// Called on each rank before each of its steps of a save; tests fail or kill the process there.
  /// The thread of an asynchronous save calls it, but for CreateStaging.
  std::function<void(CommitStep)> on_save_step{};
  /// Seed of the data order, recorded in checkpoints.
  std::uint64_t shuffle_seed = 0;
  /// Samples per epoch, recorded in checkpoints; 0: not known.
  std::uint64_t samples_per_epoch = 0;
  /// The model's names and layouts in files of other programs, for load_checkpoint().
  ForeignNames foreign_names = {};
};

class Engine {
 public:
  /// Takes over the parameters of `model`: units that no ConstructionScope has sharded are sharded
  /// here. What is trained is kept in host memory; frozen parameters and buffers stay where they
  /// are, on a CUDA device as well. Throws InvalidArgument when a unit's parameter is shared with
  /// another module or was placed for other ranks.
  Engine(std::shared_ptr<torch::nn::Module> model, Communicator& communicator, const Config& config,
         EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One optimizer step over a global batch.
  StepStats train_batch(const LossFunction& loss);
  /// The mean loss of `micro_batches` micro-batches without gradients; ids count from 0.
  double evaluate(const LossFunction& loss, std::int64_t micro_batches);

  /// Makes `folder`, which is created, this engine's to save to until it is destroyed;
  /// save_checkpoint() does the same. Throws on all ranks, before anything is written: Busy when
  /// another run saves there, naming its host and process; AlreadyExists when another program has
  /// its checkpoints there; Io and the like when the folder cannot be written to.
  void claim_save_folder(const Path& folder);
  /// Returns when the checkpoint is durable; an asynchronous save when the state is captured, that
  /// is, copied to host memory that the engine keeps (bytes_to_stage()). All ranks return or all
  /// throw: the one that failed its own error, the others PeerFailed naming it. What fails later
  /// leaves the checkpoints that were there; SaveHandle::wait() throws it or, when no rank has
  /// called that, the next save_checkpoint(), which then saves nothing. One save at a time: this
  /// waits for the one before, and so do load_checkpoint() and the destructor, which drops errors.
  SaveHandle save_checkpoint(const SaveRequest& request);
  /// Makes now what the first asynchronous save would make: its memory and its group. Throws
  /// std::bad_alloc on a rank that lacks the memory, PeerFailed on the others.
  void prepare_asynchronous_saves();
  /// `folder` as in resolve_checkpoint(), or a checkpoint of any other format (of other programs
  /// too: EngineOptions::foreign_names). Any saved world size and stage. Throws Mismatch listing
  /// every difference before anything is changed; after another error the engine must not be used
  /// further.
  LoadReport load_checkpoint(const Path& folder,
                             const std::optional<std::string>& tag = std::nullopt);

  // Local queries.
  std::int64_t step() const;
  std::uint64_t samples_seen() const;
  /// The seed of the options, or of the checkpoint that was loaded last.
  std::uint64_t shuffle_seed() const;
  double next_learning_rate() const;  ///< of the group with weight decay
  std::uint64_t parameter_count() const;
  const BatchPlan& batch() const;
  const Config& config() const;
  MemoryReport memory() const;
  std::uint64_t bytes_to_stage() const;  ///< host memory that asynchronous saves take on this rank
  void reset_memory_peak();

 private:
  friend class GatheredScope;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// While it lives, all parameters can be read on every rank (stage 3 gathers them). Collective; not
/// during train_batch().
class GatheredScope {
 public:
  explicit GatheredScope(Engine& engine);
  ~GatheredScope();
  GatheredScope(const GatheredScope&) = delete;
  GatheredScope& operator=(const GatheredScope&) = delete;

 private:
  Engine& engine_;
};

}  // namespace unishard::trainer
