#pragma once
// The ZeRO engine: partitions a model's training state among the ranks, runs steps, saves and
// loads.
// Unless noted otherwise, all members are collective (every rank calls them in the same order) and
// belong to one thread.
// Lifetime: the engine must outlive every autograd graph of its model.
//
// Order of sums: global micro-batches are assigned round-robin and their gradients are added in
// their order, norms are summed over fixed blocks, and the loss over micro-batches. At stages 2 and
// 3 (and below with "canonical_order"), losses and weights therefore have the same bits for every
// world size and stage, given equal thread count, LibTorch version and CPU type. The gradients of a
// unit on which a loss function calls backward() several times by itself are added in parts, and
// have the same bits for one world size only.
#include "unishard/trainer/checkpointing.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/runtime.hpp"
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

/// A global micro-batch; the same on every world size.
struct MicroBatch {
  std::int64_t step = 0;           ///< optimizer steps done before this one
  std::int64_t id = 0;             ///< 0 to global_micro_batches - 1
  std::uint64_t first_sample = 0;  ///< global sample index; the run's first sample is 0
  std::int64_t samples = 0;
};

/// Returns the mean loss of a micro-batch as a scalar tensor. It must depend only on its argument,
/// the parameters and what it draws from LibTorch's default generators of the CPU and the engine's
/// device, which the engine seeds for each micro-batch.
using LossFunction = std::function<at::Tensor(const MicroBatch&)>;

struct StepStats {
  std::int64_t step = 0;     ///< steps done, including this one unless it was skipped
  double loss = 0;           ///< mean loss before the update
  double gradient_norm = 0;  ///< without the loss scale, before clipping
  double learning_rate = 0;
  double loss_scale = 1;  ///< of this step, with fp16
  bool skipped = false;   ///< loss or gradient is not finite, and nothing was updated
  /// Units of this rank whose update began during the backward pass and stood; see "super_offload".
  std::int64_t units_ahead = 0;
  std::uint32_t flags = 0;  ///< the union of what EngineOptions::flags returned on all ranks
};

/// Bytes of a device's memory that this process has, as LibTorch's allocator counts them.
struct DeviceMemory {
  std::int64_t allocated = 0;  ///< in tensors, among them the activations and what kernels need
  std::int64_t allocated_peak = 0;
  std::int64_t reserved = 0;  ///< taken from the driver, with what is kept for later tensors
  std::int64_t reserved_peak = 0;
};

/// Bytes on this rank that the engine counts; activations and LibTorch's own buffers are not
/// counted.
struct MemoryReport {
  std::int64_t parameters = 0;       ///< flat parameters that are allocated now
  std::int64_t parameters_peak = 0;  ///< peak of `parameters`, including construction
  std::int64_t master = 0;           ///< fp32 weights, unless they are the parameters themselves
  std::int64_t optimizer = 0;
  std::int64_t frozen = 0;         ///< frozen parameters: this rank's shards at stage 3, else whole
  std::int64_t gradients = 0;      ///< accumulators
  std::int64_t reducing_peak = 0;  ///< peak of the gradients that waited to be reduced
  std::int64_t files = 0;          ///< training state in files, and their room for updates ahead
  std::int64_t updates_ahead = 0;  ///< in the host's memory
  std::int64_t staging = 0;  ///< copy of the state for asynchronous saves, reused by later ones
  /// nullopt on the host, and where LibTorch's allocator does not count (LibTorch before 2.9).
  std::optional<DeviceMemory> device = std::nullopt;
};

/// Trains one model and saves and loads its state. Not thread-safe.
class Engine {
 public:
  /// Takes over the parameters of `model`, moves them to the runtime's device, and shards the units
  /// that no ConstructionScope has sharded. Parameters that require no gradient are frozen; which
  /// ones do must not change later.
  /// Lifetime: `communicator`, and the runtime and storage in `options`, must outlive the engine.
  /// The model may have a new engine after this one was destroyed; it keeps its values until then.
  /// Throws: InvalidArgument when another engine has the model, or when a unit's parameter is
  /// shared with another module or was constructed for another placement; Mismatch on every rank
  /// when the ranks have different models, initial values or configurations, naming the first
  /// difference.
  Engine(const std::shared_ptr<torch::nn::Module>& model, Communicator& communicator,
         const Config& config, EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One optimizer step over a global batch. Gradients that parameters have from before are not
  /// part of it. Throws: NotFinite on every rank, naming micro-batch, parameter and rank, when the
  /// loss or a gradient is NaN or infinite and the configuration does not skip such steps. With
  /// fp16 they are skipped and lower the loss scale, until the smallest one overflows. The training
  /// state is as before the step, so the engine can be used and saved. After an exception of `loss`
  /// or of the backward pass on every rank, the state is as before the step too. Mismatch on every
  /// rank when the ranks used different units or parameters, because of data for example, so that
  /// they gathered or reduced the units in different orders.
  StepStats train_batch(const LossFunction& loss);

  // The same step in DeepSpeed's three calls, which a program makes for each of its micro-batches.
  // After an exception of one of them, the step begins anew.
  /// Returns the loss of this rank's next micro-batch.
  at::Tensor forward(const LossFunction& loss);
  /// Adds the gradients of the loss that forward() returned, or of a tensor that depends on it.
  void backward(const at::Tensor& loss);
  /// Returns nullopt before the step's last micro-batch. After it, updates the weights and returns
  /// what train_batch() returns.
  /// Throws: as train_batch() does.
  std::optional<StepStats> step();
  /// Returns true during the step's last micro-batch. Local.
  bool is_gradient_accumulation_boundary() const;

  /// Returns the mean loss of `micro_batches` micro-batches, with ids from 0, without gradients and
  /// in evaluation mode. Afterwards each module is in its former mode.
  /// Throws: Mismatch as train_batch() does.
  double evaluate(const LossFunction& loss, std::int64_t micro_batches);

  /// Creates `folder` and locks it for this engine's saves until the engine is destroyed.
  /// save_checkpoint() does the same for its folder.
  /// Throws: on all ranks and before anything is written, Busy when another run saves there, naming
  /// its host and process; AlreadyExists when another program has its checkpoints there; Io and
  /// similar when the folder cannot be written to.
  void claim_save_folder(const Path& folder);
  /// Saves a checkpoint. Returns when it is durable; for an asynchronous save, when the state is
  /// captured: parameters and buffers are copied to host memory of the engine (bytes_to_stage()),
  /// and what the engine alone changes will be, before the next update changes it. Only one save
  /// runs at a time: this function, load_checkpoint() and the destructor wait for the previous one;
  /// the destructor ignores its error. Of buffers that differ between the ranks, rank 0's are
  /// saved, as DeepSpeed does, and SaveReport::warnings names them. Throws: on all ranks or on
  /// none. The rank that failed throws its own error, the others PeerFailed naming it. A later
  /// failure of an asynchronous save leaves the existing checkpoints unchanged; SaveHandle::wait()
  /// throws it or, if no rank called that, the next save_checkpoint(), which then saves nothing.
  SaveHandle save_checkpoint(const SaveRequest& request);
  /// Allocates now what the first asynchronous save would allocate: its memory and its process
  /// group.
  /// Throws: std::bad_alloc on a rank that lacks the memory, PeerFailed on the others.
  void prepare_asynchronous_saves();
  /// Loads a checkpoint of any format, world size and stage. `folder` and `tag` are those of
  /// resolve_checkpoint(), or name a checkpoint of another format (for other programs' files see
  /// EngineOptions::foreign_names).
  /// Throws: Mismatch, listing every difference, before anything is changed. After any other error
  /// the engine must not be used any more.
  LoadReport load_checkpoint(const Path& folder,
                             const std::optional<std::string>& tag = std::nullopt);

  // Local queries; not collective.
  std::int64_t global_steps() const;  ///< optimizer steps done
  /// Returns how many steps the run has skipped; see NonFinite::Skip.
  std::int64_t skipped_steps() const;
  std::uint64_t samples_seen() const;
  /// Returns the seed in the options, or in the checkpoint that was loaded last.
  std::uint64_t shuffle_seed() const;
  double next_learning_rate() const;  ///< rate of the group with weight decay
  std::uint64_t parameter_count() const;
  const BatchPlan& batch() const;
  const Config& config() const;
  MemoryReport memory() const;
  /// Returns true when fp16 values are kept as float32 while kernels use them, because LibTorch has
  /// no half kernels for the device.
  bool widens_fp16() const;
  /// Returns the host memory that an asynchronous save takes on this rank.
  std::uint64_t bytes_to_stage() const;
  void reset_memory_peak();

 private:
  friend class GatheredScope;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Makes parameters, frozen ones too, readable on every rank as long as it lives (stage 3 gathers
/// them). At stage 3, what is written to them is lost without write_back(). Collective.
/// Do not use it during a step. Lifetime: the engine must outlive it.
class GatheredScope {
 public:
  /// Gathers all parameters, and waits for them.
  /// Throws: PeerFailed.
  explicit GatheredScope(Engine& engine);
  /// Gathers the parameters with these names.
  /// Throws: PeerFailed; NotFound for a name that no parameter has.
  GatheredScope(Engine& engine, const std::vector<std::string>& names);
  ~GatheredScope();
  GatheredScope(const GatheredScope&) = delete;
  GatheredScope& operator=(const GatheredScope&) = delete;

  /// Gives the values that `rank` has written to the parameters to all ranks and to the training
  /// state. Optimizer states do not change. Collective.
  void write_back(std::uint32_t rank);

 private:
  Engine& engine_;
  std::vector<std::size_t> parameters_;  ///< indices in the engine's model
};

}  // namespace unishard::trainer
