#pragma once
// The memory that a rank needs, and what to do when it has none left.
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/model_config.hpp"

#include "options.hpp"

#include <cstdint>
#include <string>

namespace train_gpt {

/// What decides the memory of a rank.
struct RunSize {
  const unishard::trainer::Config& config;
  const unishard::trainer::ModelConfig& model;
  std::int64_t context = 1;  ///< tokens of a sample
  std::uint32_t world_size = 1;
  bool computes_on_host = false;
};

/// Lifetime: `options` must outlive what is returned.
RunSize run_size(const Options& options, std::uint32_t world_size, bool computes_on_host);

/// Returns a hint: the memory that the training state of a rank and its activations take, and the
/// settings that would take less of what has run out, in DeepSpeed's words and with their bytes.
std::string memory_advice(const RunSize& run);

/// Returns the room that the training state of a rank takes in files; empty without any.
std::string files_advice(const RunSize& run);

/// Returns a line: what a rank is planned to have at its peak. `staging` are the bytes of its copy
/// for saves, `program` the megabytes that the process had before there was a model.
std::string planned_memory(const RunSize& run, std::int64_t staging, double program);

}  // namespace train_gpt
