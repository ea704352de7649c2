#pragma once
// The context of the current step that units need, and the engine's access to units.
#include "unishard/trainer/sharded.hpp"

#include "state/flat_unit.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

class GatherSchedule;

struct StepContext {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
  GatherSchedule* schedule = nullptr;
  Runtime* runtime = nullptr;
  bool casts_inputs = false;  ///< to the compute dtype, where they are floating-point
  int depth = 0;              ///< units within whose forward this is
};

/// Sets the generator from which dropout() draws on this thread, until it is destroyed. Scopes
/// nest: the outermost one is a micro-batch's, the others are uses of units in it.
class DropoutScope {
 public:
  /// `unit` is a unit's number, or 0 for what is outside of units.
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
  static void attach(UnitBase& unit, StepContext* context, std::uint64_t index) {
    unit.context_ = context;
    unit.index_ = index;
  }
};

/// A parameter or buffer with its name relative to the module at which the search began.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

std::string join_names(const std::string& prefix, const std::string& name);

/// The parameters of a unit in order of registration, including those of its children but not of
/// nested units; each once.
struct UnitParameters {
  std::vector<NamedTensor> trained;
  std::vector<NamedTensor> frozen;  ///< those that can lie in a flat tensor: dense, not quantized
  bool empty() const { return trained.empty() && frozen.empty(); }
};

UnitParameters unit_parameters(torch::nn::Module& module, const std::string& prefix);

/// Returns the state of a unit: its trained parameters, and at stage 3 the frozen ones. Frozen
/// parameters and buffers are moved to the device and converted to the compute dtype before.
/// Throws: InvalidArgument when another unit has sharded one of the parameters.
std::unique_ptr<FlatUnit> shard_unit(torch::nn::Module& module, const Placement& placement,
                                     const std::shared_ptr<MemoryMeter>& meter);

/// Returns false for a parameter whose values are in shards only.
bool has_values(const at::Tensor& parameter);

}  // namespace unishard::trainer::detail
