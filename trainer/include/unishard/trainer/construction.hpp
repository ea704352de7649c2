#pragma once
// Building a model that no rank could hold whole. While a ConstructionScope is alive on a thread,
// every Sharded<M> that is constructed there keeps only this rank's part as soon as M's constructor
// is done (stage 3), so the peak is one unit; and its initial values depend on (seed, unit number)
// only, never on the world size or stage.
#include "unishard/format/dtype.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/config.hpp"

#include <cstdint>
#include <memory>

namespace unishard::trainer {

namespace detail {
class MemoryMeter;
}

/// Where the parameters of a model go. The engine and the scope must use the same.
struct Placement {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t stage = 0;
  DType compute = DType::Float32;
  std::uint64_t seed = 0;
  bool operator==(const Placement&) const = default;
};

Placement placement_for(const Config& config, const Communicator& communicator);

class ConstructionScope {
 public:
  /// Seeds LibTorch's default generator for what is constructed outside of any unit. Scopes do not
  /// nest.
  explicit ConstructionScope(const Placement& placement);
  ~ConstructionScope();
  ConstructionScope(const ConstructionScope&) = delete;
  ConstructionScope& operator=(const ConstructionScope&) = delete;

  /// This thread's, or nullptr.
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
