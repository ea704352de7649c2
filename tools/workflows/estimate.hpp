#pragma once
// Memory, disk and time that a training will need, before anything runs.
// Thread safety: values and pure functions.
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/memory_plan.hpp"

#include "workflows/model_size.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

/// The machines of a run.
struct Setup {
  std::uint64_t nodes = 1;
  std::uint64_t devices_per_node = 1;
  double buffer_factor = 1.5;                 ///< DeepSpeed's allowance for buffers in host memory
  std::optional<std::uint64_t> device_bytes;  ///< memory of one device
  std::optional<std::uint64_t> host_bytes;    ///< memory of one node
  std::uint64_t disk_bytes_per_second = std::uint64_t{1} << 30;
  // For activations; nullopt when they are not asked for.
  std::optional<std::uint64_t> micro_batch, context;
  bool recomputes = false;  ///< activations of a layer are recomputed in the backward pass
  /// The configuration of the run, from a file; without one, bf16 and AdamW with DeepSpeed's
  /// defaults.
  std::optional<trainer::Config> config;

  std::uint64_t devices() const { return nodes * devices_per_node; }
};

enum class Offload : std::uint8_t { None, Optimizer, OptimizerAndParameters };

/// What one stage needs with one kind of offload, in bytes. The states of stages 2 and 3 are those
/// of DeepSpeed's estimate_zero2_model_states_mem_needs() and estimate_zero3_...().
struct StageNeeds {
  std::uint32_t stage = 0;
  Offload offload = Offload::None;
  bool zero_init = true;     ///< the model is built sharded; UniShard always does this
  std::uint64_t host = 0;    ///< of a node, for the states
  std::uint64_t device = 0;  ///< of a device, for the states
};

/// What each rank of UniShard's trainer needs at one stage with its training state in one place.
struct RankNeeds {
  std::uint32_t stage = 0;
  trainer::Residence optimizer = trainer::Residence::Device;
  trainer::Residence parameters = trainer::Residence::Device;
  bool is_configured = false;  ///< what the file of the configuration says
  std::vector<trainer::PlannedMemory> parts;
  std::uint64_t staging = 0;  ///< bytes of host memory that an asynchronous save copies to
  std::uint64_t at(trainer::Residence place) const {
    return static_cast<std::uint64_t>(trainer::planned_bytes(parts, place));
  }
};

struct Estimate {
  ModelSize model;
  Setup setup;
  std::vector<StageNeeds> stages;             ///< from the fastest to the smallest
  std::vector<StageNeeds> without_zero_init;  ///< stage 3 as DeepSpeed prints it too
  std::vector<RankNeeds> ranks;               ///< every stage with every place
  std::optional<std::uint64_t> activations;   ///< bytes of a device
  std::uint64_t checkpoint = 0;               ///< bytes of one saved step
  double save_seconds = 0;
  std::uint64_t weights = 0;  ///< bytes of the weights alone in float32
  std::string recommendation;
};

/// Pre: `setup` has at least one device.
Estimate estimate(const ModelSize& model, const Setup& setup);

/// Returns, for example, "stage 2 with optimizer offload".
std::string plan_name(const StageNeeds& needs);
/// Returns, for example, "stage 3 with optimizer offload to nvme".
std::string plan_name(const RankNeeds& needs);

}  // namespace unishard::tools
