#pragma once
// The place of a rank's part of the training state, by DeepSpeed's keys "offload_optimizer",
// "offload_param" and "aio", with DeepSpeed's defaults. The residence is a property of a run and
// never of a checkpoint: it changes memory and speed, and no result.
#include <cstdint>
#include <optional>
#include <string>

namespace unishard::trainer {

enum class Residence : std::uint8_t {
  Device,  ///< the runtime's own memory
  Host,    ///< the memory of the host ("cpu")
  File,    ///< a file of this rank that is private to the run ("nvme")
};

/// "zero_optimization.offload_optimizer": the fp32 weights, the states of the optimizer and the
/// sums of the gradients.
struct OffloadOptimizer {
  Residence residence = Residence::Device;
  std::string nvme_path;          ///< the folder of the files; required for Residence::File
  std::int64_t buffer_count = 4;  ///< parts of files that are in memory at a time; at least 3
  /// Updates begin during the backward pass, which takes room for two of the state. Without a
  /// value, they do with files, if the disk has the room.
  std::optional<bool> super_offload = {};
  /// The part of the units that is offloaded; the others stay in the runtime's memory.
  double ratio = 1;
  bool operator==(const OffloadOptimizer&) const = default;
};

/// "zero_optimization.offload_param": at stage 3, the weights in the compute dtype and frozen
/// parameters.
struct OffloadParam {
  Residence residence = Residence::Device;
  std::string nvme_path;  ///< the folder of the files; required for Residence::File
  /// Files: so many elements of this rank's parameters are in the memory of the host instead.
  std::int64_t max_in_cpu = 1'000'000'000;
  bool operator==(const OffloadParam&) const = default;
};

/// "aio": how files are read and written.
struct AioOptions {
  std::int64_t block_size = std::int64_t{1} << 20;  ///< bytes of a file's blocks
  std::int64_t threads = 1;                         ///< that read, and that write, blocks at a time
  bool operator==(const AioOptions&) const = default;
};

/// Makes the C library give the memory of freed tensors back to the system at once. Without it,
/// freed memory that lies between other memory stays with the process, so that a model that is kept
/// in files takes several times the memory that it needs. Allocating large tensors takes a little
/// longer. It holds for the whole process.
void return_freed_memory();

}  // namespace unishard::trainer
