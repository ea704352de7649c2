#pragma once
// What to do when a rank has no memory left.
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/model_config.hpp"

#include <cstdint>
#include <string>

namespace train_gpt {

/// Returns a hint: the memory that the training state of a rank takes, and the settings that would
/// take less of what has run out, in DeepSpeed's words and with their bytes.
std::string memory_advice(const unishard::trainer::Config& config,
                          const unishard::trainer::ModelConfig& model, std::uint32_t world_size,
                          bool computes_on_host);

/// Returns the room that the training state of a rank takes in files; empty without any.
std::string files_advice(const unishard::trainer::Config& config,
                         const unishard::trainer::ModelConfig& model, std::uint32_t world_size,
                         bool computes_on_host);

}  // namespace train_gpt
