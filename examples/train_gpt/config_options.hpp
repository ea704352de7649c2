#pragma once
// The configuration file and the options that set its keys.
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/model_config.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <map>
#include <string>

namespace train_gpt {

struct ConfigOptions {
  std::string path;
  std::map<std::string, unishard::Json> flags;  ///< by the path of the key that they set

  /// Adds --config and an option for each key that the table gives one.
  /// Lifetime: this object must outlive `app`.
  void add_to(CLI::App& app);
  /// Reads the file. The model gives "auto" bucket sizes, `steps` an "auto" total_num_steps.
  /// Throws: unishard::Error.
  unishard::trainer::Config read(const unishard::trainer::ModelConfig& model,
                                 std::int64_t steps) const;
};

/// Returns a line for every value of the configuration, with where it comes from, and the batch of
/// a run with `world_size` ranks.
std::string config_text(const unishard::trainer::Config& config, std::uint32_t world_size);

}  // namespace train_gpt
