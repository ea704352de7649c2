#pragma once
// The memory that a rank of the trainer will need for its training state, from a configuration and
// the size of a model, before anything runs.
// Thread safety: values and pure functions.
#include "unishard/trainer/config.hpp"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace unishard::trainer {

/// What plan_memory() knows of a model and its run. Counts of elements.
struct PlannedModel {
  std::int64_t parameters = 0;    ///< of the model, all of them trained
  std::int64_t largest_unit = 0;  ///< of the module that is gathered and reduced as a whole
  std::uint32_t world_size = 1;   ///< at least 1
  /// The model computes on the host, whose memory Residence::Device then is.
  bool computes_on_host = false;
};

/// Bytes of a rank.
struct PlannedMemory {
  std::string_view name;  ///< static: "parameters", "optimizer states", ...
  Residence place = Residence::Device;
  std::int64_t bytes = 0;
};

/// Returns the parts of a rank's training state in the order of the step, without those of zero
/// bytes. Activations, LibTorch's own buffers and copies for asynchronous saves are not among them.
/// A part that shrinks and grows has its peak. The bytes are those of Engine::memory(), but for the
/// padding of shards.
/// Pre: config.stage is at most 3.
/// Throws: as plan_batch() does for the batch sizes of the configuration, which may be absent.
std::vector<PlannedMemory> plan_memory(const Config& config, const PlannedModel& model);

/// Returns the sum of the parts at `place`.
std::int64_t planned_bytes(std::span<const PlannedMemory> parts, Residence place);

/// Returns the largest number of float32 states that the optimizer has for a parameter.
std::int64_t optimizer_states(const Config& config);

/// Returns true when updates of offloaded units begin during the backward pass, if there is room.
/// Those of Lamb and Muon need whole parameters.
bool wants_updates_ahead(const Config& config);

/// Returns how many elements of arrays in files are updated at a time, where a rank holds `held` of
/// them: as many as are read and written fast, fewer for a small model, and whole blocks.
std::int64_t elements_of_file_update(const Config& config, std::int64_t held);

/// Elements that the host updates at a time for a device, to which they then go. Two such parts of
/// the new parameters are in pinned memory.
inline constexpr std::int64_t kElementsOfHostUpdate = std::int64_t{1} << 21;

/// Returns how many such updates are in memory at a time: one is read, one computed, one written.
std::int64_t file_updates_in_memory(const Config& config);

}  // namespace unishard::trainer
