#include "unishard/trainer/construction.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/seeds.hpp"

#include "state/memory_meter.hpp"

#include <torch/utils.h>

namespace unishard::trainer {
namespace {

/// Thread-local, because the constructor of a module has no parameter for the scope.
thread_local ConstructionScope* current_scope = nullptr;

}  // namespace

Placement placement_for(const Config& config, const Communicator& communicator, at::Device device) {
  return {.rank = communicator.rank(),
          .world_size = communicator.size(),
          .stage = config.stage,
          .compute = config.compute,
          .seed = config.seed,
          .device = device,
          .offload_optimizer = config.offload_optimizer,
          .offload_param = config.offload_param,
          .aio = config.aio};
}

ConstructionScope::ConstructionScope(const Placement& placement)
    : placement_(placement), meter_(std::make_shared<detail::MemoryMeter>()) {
  if (current_scope)
    raise(ErrorCode::InvalidArgument, "ConstructionScope: one is alive on this thread");
  current_scope = this;
  torch::manual_seed(initial_value_seed(placement_.seed, 0));
}

ConstructionScope::~ConstructionScope() { current_scope = nullptr; }

ConstructionScope* ConstructionScope::current() { return current_scope; }

void ConstructionScope::begin_unit() {
  torch::manual_seed(initial_value_seed(placement_.seed, ++units_));
}

}  // namespace unishard::trainer
