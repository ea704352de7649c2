#pragma once
// What a unit needs to know of the step that runs, and how the engine reaches into a unit.
#include "unishard/trainer/sharded.hpp"

#include "engine/flat_unit.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

struct StepContext {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
};

/// The generator that dropout() draws from while this lives, on this thread. Nests.
class DropoutScope {
 public:
  DropoutScope(const StepContext& context, std::uint64_t unit);
  ~DropoutScope();
  DropoutScope(const DropoutScope&) = delete;
  DropoutScope& operator=(const DropoutScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct UnitAccess {
  static std::unique_ptr<FlatUnit>& flat(UnitBase& unit) { return unit.flat_; }
  static void attach(UnitBase& unit, const StepContext* context, std::uint64_t index) {
    unit.context_ = context;
    unit.index_ = index;
  }
};

/// A parameter or buffer by its name below the module where the walk began.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

std::string join_names(const std::string& prefix, const std::string& name);

/// Makes the flat tensor of a unit: its trainable parameters in order of registration, those of its
/// children included, nested units left out. Frozen parameters and buffers only get the compute
/// dtype.
std::unique_ptr<FlatUnit> shard_unit(torch::nn::Module& module, const Placement& placement,
                                     const std::shared_ptr<MemoryMeter>& meter);

/// What shard_unit() would take, named.
std::vector<NamedTensor> unit_parameters(torch::nn::Module& module, const std::string& prefix);

}  // namespace unishard::trainer::detail
