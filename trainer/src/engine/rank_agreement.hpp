#pragma once
// Ranks of one run must have the same model, the same initial values and the same configuration.
// Otherwise their collectives do not match, or the run diverges silently.
#include "unishard/trainer/checkpointing.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/config.hpp"

#include "state/model_state.hpp"

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// Returns one line for each fact in which ranks must agree: values of the configuration, options,
/// the type of the device, names, shapes, dtypes and values of parameters and buffers. Of frozen
/// parameters that a ConstructionScope has sharded, the values are those that they had before.
/// Trained parameters of which a rank holds only a part (stage 3) have no values here; they follow
/// from the seed.
std::vector<std::string> describe_run(const torch::nn::Module& model, const Config& config,
                                      const EngineOptions& options, at::Device device);

/// Throws: Mismatch on every rank, with the first line in which a rank differs from rank 0.
/// Collective.
void require_equal_runs(Communicator& communicator, const std::vector<std::string>& lines);

/// Checks that all ranks gathered and reduced the same units in the same order. Otherwise they
/// mixed up the values of different units. Throws: Mismatch on every rank, with the first
/// difference from rank 0. Collective.
void require_equal_order(Communicator& communicator, const CollectiveOrder& order);

}  // namespace unishard::trainer::detail
