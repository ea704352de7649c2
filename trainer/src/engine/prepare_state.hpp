#pragma once
// What a run begins with.
#include "unishard/trainer/engine.hpp"

#include "state/training_state.hpp"

#include <torch/nn/module.h>

#include <memory>

namespace unishard::trainer::detail {

/// Takes over the model after all ranks have shown that they have the same. Collective.
/// Throws: as Engine's constructor does. When the ranks differ, the model is unchanged.
TrainingState prepare_state(const std::shared_ptr<torch::nn::Module>& model,
                            Communicator& communicator, const Config& config,
                            const EngineOptions& options, at::Device device);

}  // namespace unishard::trainer::detail
