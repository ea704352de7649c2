#pragma once
// Files that DeepSpeed's monitors write: comma-separated values, and TensorBoard's events.
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/engine.hpp"

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace train_gpt {

/// Writes loss, rate and, with fp16, loss scale of each step under DeepSpeed's names, by the number
/// of samples. Only rank 0 has one. What cannot be written is a warning, once, and training goes
/// on.
class Monitors {
 public:
  /// Creates the folders that the configuration names.
  /// Throws: Io when that fails.
  explicit Monitors(const unishard::trainer::Config& config);
  /// `next_rate`: DeepSpeed writes the rate that its scheduler has set for the next step.
  void write(const unishard::trainer::StepStats& stats, double next_rate, std::int64_t samples);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;

  void write_value(std::string_view name, double value, std::int64_t samples);
  void write_row(std::string_view name, double value, std::int64_t samples);
  void warn(const std::string& path, int error);

  std::string csv_folder_;
  std::map<std::string, File, std::less<>> tables_;  ///< by name of the value
  std::string events_path_;
  File events_;
  bool has_warned_ = false;
};

}  // namespace train_gpt
