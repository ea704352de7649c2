#pragma once
// The parts of an engine.
#include "unishard/trainer/engine.hpp"

#include "checkpoint/saver.hpp"
#include "comm/tensor_collectives.hpp"
#include "engine/micro_batches.hpp"
#include "engine/speculation.hpp"
#include "state/attachment.hpp"
#include "state/gather_schedule.hpp"
#include "state/training_state.hpp"

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <vector>

namespace unishard::trainer {

struct Engine::Impl {
  Impl(const std::shared_ptr<torch::nn::Module>& the_model, Communicator& the_communicator,
       const Config& config, EngineOptions the_options);

  void speculate();
  void begin_step();
  StepStats finish_step();
  void require_no_step(const char* what) const;
  void leave_out(const std::vector<double>& losses);
  void require_skipping(const std::vector<double>& losses) const;

  std::shared_ptr<torch::nn::Module> model;
  Communicator& communicator;
  EngineOptions options;
  std::unique_ptr<Runtime> own_runtime;
  Runtime& runtime;
  detail::ModelClaim claim;
  detail::TrainingState state;
  std::unique_ptr<detail::TensorCollectives> collectives;
  detail::InFlight gradients;
  detail::CollectiveOrder order;
  detail::GatherSchedule schedule;
  detail::StepContext context;
  std::optional<detail::Speculation> speculation;
  detail::Attachment attachment;
  detail::MicroBatches micro_batches;
  detail::Saver saver;
};

}  // namespace unishard::trainer
