#pragma once
// Everything that a training run carries from step to step, and that a checkpoint must hold.
#include "unishard/trainer/checkpointing.hpp"
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/optimizer.hpp"

#include "comm/nodes.hpp"
#include "precision/loss_scaler.hpp"
#include "state/model_state.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace unishard::trainer::detail {

struct TrainingState {
  Config config;
  BatchPlan batch;
  Nodes nodes{1};  ///< which ranks save to one folder
  ModelState model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Optimizer> adam;  ///< Muon: of the groups that do not use it; else null
  std::vector<ParameterGroup> groups;
  std::optional<LossScaler> scaler;  ///< of fp16
  std::int64_t step = 0;             ///< optimizer steps done
  std::int64_t skipped_steps = 0;    ///< steps whose update was left out
  std::int64_t last_iteration = -1;  ///< of the scheduler; see learning_rate()
  std::uint64_t samples = 0;         ///< samples seen so far
  std::uint64_t seed = 0;
  std::uint64_t shuffle_seed = 0;
  std::uint64_t samples_per_epoch = 0;

  /// Returns true for a matrix of Muon.
  bool uses_muon(const ParameterRecord& parameter) const {
    return adam && groups[parameter.group].hyper.use_muon;
  }
  const Optimizer& optimizer_of(const ParameterGroup& group) const {
    return adam && !group.hyper.use_muon ? *adam : *optimizer;
  }
  const Optimizer& optimizer_of(const ParameterRecord& parameter) const {
    return optimizer_of(groups[parameter.group]);
  }
  /// Returns the number of states that each unit has: as many as the parameter with the most.
  std::size_t states() const {
    return std::max(optimizer->state_names().size(), adam ? adam->state_names().size() : 0);
  }

  /// Returns the factor of the loss, and so of the gradients.
  double loss_scale() const { return scaler ? scaler->scale() : 1; }
};

}  // namespace unishard::trainer::detail
