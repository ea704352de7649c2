#pragma once
// The command line of train_gpt as a value.
#include "unishard/format/compression.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/model_config.hpp"
#include "unishard/trainer/token_format.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace train_gpt {

enum class DeviceChoice : std::uint8_t {
  Cpu,
  Cuda,
  Auto,  ///< CUDA when every rank has a device
};

struct Options {
  bool prints_config = false;  ///< and does nothing else: only `config` and `model` are set
  unishard::trainer::Config config;
  unishard::trainer::ModelConfig model;
  std::int64_t context = 0;  ///< tokens per sample
  std::string data;
  unishard::trainer::TokenFormat tokens;
  std::int64_t steps = 100;
  std::string save_folder;         ///< empty: never save
  std::int64_t save_interval = 0;  ///< 0: at the end only
  std::uint32_t keep_last = 0;
  std::string tag_prefix = "global_step";
  std::optional<bool> async_save;  ///< nullopt: asynchronous if there is memory for it
  unishard::Compression compression;
  bool incremental_save = false;
  std::optional<std::string> resume;  ///< "latest", a path or a tag
  /// --resume starts a new run beside checkpoints that it cannot load.
  bool fresh = false;
  std::string losses;            ///< file for a JSON line per step; empty: none
  std::string trace;             ///< file for what each stream did; empty: none
  std::string profile;           ///< file for operators and kernels; empty: none
  bool profile_summary = false;  ///< prints them as a table
  std::int64_t profile_first = 2, profile_last = 3;  ///< steps of this run, the first is 1
  bool report_memory = false;
  int threads = 1;
  std::uint32_t timeout_seconds = 600;
  DeviceChoice device = DeviceChoice::Cpu;
  unishard::trainer::Backend backend = unishard::trainer::Backend::Auto;
};

/// Reads the command line and the configuration file. Returns nullopt after printing --help
/// (`status` 0) or a usage error (`status` 2).
/// Throws: unishard::Error for an invalid configuration.
std::optional<Options> parse_options(int argc, char** argv, int& status);

}  // namespace train_gpt
