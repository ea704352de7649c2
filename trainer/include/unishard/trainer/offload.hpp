#pragma once
// Where a rank keeps its part of the training state, by DeepSpeed's keys "offload_optimizer",
// "offload_param" and "aio", with DeepSpeed's defaults. The residence is a property of a run and
// never of a checkpoint: it changes memory and speed, and no result.
#include <cstdint>
#include <string>

namespace unishard::trainer {

enum class Residence : std::uint8_t {
  Device,  ///< the runtime's own memory
  Host,    ///< the memory of the host ("cpu")
  File,    ///< a file of this rank that is private to the run ("nvme")
};

/// "zero_optimization.offload_optimizer": the fp32 weights and the states of the optimizer.
struct OffloadOptimizer {
  Residence residence = Residence::Device;
  std::string nvme_path;          ///< the folder of the files; required for Residence::File
  std::int64_t buffer_count = 4;  ///< sub-groups that may be in memory at a time
  bool pin_memory = true;
  bool pipeline_read = false;   ///< accepted; reads always overlap updates
  bool pipeline_write = false;  ///< accepted; writes always overlap updates
  bool fast_init = false;
  double ratio = 1;            ///< the part of the sub-groups that is offloaded, 0 to 1
  bool super_offload = false;  ///< updates begin during the backward pass
  bool operator==(const OffloadOptimizer&) const = default;
};

/// "zero_optimization.offload_param": the weights in the compute dtype at stage 3.
struct OffloadParam {
  Residence residence = Residence::Device;
  std::string nvme_path;                    ///< the folder of the files; required for File
  std::int64_t buffer_count = 5;            ///< units that may be in host memory at a time
  std::int64_t buffer_size = 100'000'000;   ///< elements of a buffer
  std::int64_t max_in_cpu = 1'000'000'000;  ///< elements that stay in host memory besides the files
  bool pin_memory = true;
  bool operator==(const OffloadParam&) const = default;
};

/// "aio": how files are read and written.
struct AioOptions {
  std::int64_t block_size = std::int64_t{1} << 20;  ///< bytes of one request
  std::int64_t queue_depth = 8;                     ///< requests at a time
  std::int64_t thread_count = 1;
  bool single_submit = false;
  bool overlap_events = true;
  bool operator==(const AioOptions&) const = default;
};

/// Makes the C library give the memory of freed tensors back to the system at once. Without it,
/// freed memory that lies between other memory stays with the process, so that a model that is kept
/// in files takes several times the memory that it needs. Allocating large tensors takes a little
/// longer. It holds for the whole process.
void return_freed_memory();

}  // namespace unishard::trainer
