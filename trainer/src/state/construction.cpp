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

namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& problem,
                         const std::string& hint) {
  raise(ErrorCode::InvalidArgument, "configuration: zero_optimization." + key + " " + problem,
        hint);
}

template <class Offloaded>
void require_path(const std::string& key, const Offloaded& offloaded) {
  if (offloaded.residence == Residence::File && offloaded.nvme_path.empty())
    refuse(key + ".nvme_path", "is missing", "give the folder of the files");
}

/// Throws: InvalidArgument for state that this stage does not shard, or without a folder.
void require_possible_offload(const Config& config) {
  if (config.offload_optimizer.residence != Residence::Device && config.stage == 0)
    refuse("offload_optimizer", "needs stage 1, 2 or 3", "stage 0 keeps all state on every rank");
  if (config.offload_param.residence != Residence::Device && config.stage < 3)
    refuse("offload_param", "needs stage 3", "below it every rank keeps all parameters");
  require_path("offload_optimizer", config.offload_optimizer);
  require_path("offload_param", config.offload_param);
}

}  // namespace

Placement placement_for(const Config& config, const Communicator& communicator, at::Device device) {
  require_possible_offload(config);
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
