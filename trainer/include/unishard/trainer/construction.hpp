#pragma once
// Constructs a model that no rank can hold whole. While a ConstructionScope exists on a thread,
// every Sharded<M> constructed there keeps only this rank's part as soon as M's constructor returns
// (stage 3), so the peak memory is one unit. Its initial values depend only on the seed and the
// unit's number, never on the world size or stage.
#include "unishard/format/dtype.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/config.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace unishard::trainer {

namespace detail {
class MemoryMeter;
}

/// Assignment of a model's parameters to ranks. The engine and the scope must use the same one.
struct Placement {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t stage = 0;
  DType compute = DType::Float32;
  std::uint64_t seed = 0;
  at::Device device = at::kCPU;  ///< on which the model computes
  OffloadOptimizer offload_optimizer = {};
  OffloadParam offload_param = {};
  AioOptions aio = {};
  bool operator==(const Placement&) const = default;
};

/// Throws: InvalidArgument when the configuration offloads what its stage does not shard, or to a
/// file without a folder.
Placement placement_for(const Config& config, const Communicator& communicator,
                        at::Device device = at::kCPU);

/// Use it only on the thread that created it.
class ConstructionScope {
 public:
  /// Seeds LibTorch's default generator for modules outside any unit.
  /// Throws: InvalidArgument when the thread already has a scope.
  explicit ConstructionScope(const Placement& placement);
  ~ConstructionScope();
  ConstructionScope(const ConstructionScope&) = delete;
  ConstructionScope& operator=(const ConstructionScope&) = delete;

  /// Returns this thread's scope, or nullptr.
  static ConstructionScope* current();
  const Placement& placement() const { return placement_; }
  /// Seeds the default generator for the next unit.
  void begin_unit();
  const std::shared_ptr<detail::MemoryMeter>& meter() const { return meter_; }

 private:
  Placement placement_;
  std::shared_ptr<detail::MemoryMeter> meter_;
  std::uint64_t units_ = 0;
};

}  // namespace unishard::trainer
