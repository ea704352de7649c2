#include "console.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

namespace train_gpt {
namespace {

using unishard::trainer::BatchPlan;

double megabytes(double bytes) { return bytes / 1e6; }
double megabytes(std::int64_t bytes) { return megabytes(static_cast<double>(bytes)); }

/// "VmHWM" and the like of this process, in MB.
double process_megabytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    double kibibytes = 0;
    if (name == field + ":" && status >> kibibytes) return kibibytes * 1024 / 1e6;
    std::getline(status, name);
  }
  return 0;
}

}  // namespace

void print_header(const Options& options, const unishard::trainer::Engine& engine,
                  const unishard::trainer::RankEnvironment& environment) {
  const auto& config = options.config;
  const BatchPlan& batch = engine.batch();
  fmt::print("train_gpt: {:.2f} M parameters, world size {} ({}), ZeRO stage {}, {}, {}\n",
             static_cast<double>(engine.parameter_count()) / 1e6, environment.world_size,
             environment.launcher, config.stage, name_of(config.compute), config.optimizer);
  fmt::print("  batch {} = {} micro-batches of {}, {} micro-steps per rank", batch.train,
             batch.global_micro_batches, batch.micro, batch.accumulation);
  if (const auto padding = batch.padding(environment.world_size); padding > 0)
    fmt::print(" ({} padding)", padding);
  fmt::print("{}\n", config.folds_every_micro_batch() ? ", canonical order" : "");
  for (const std::string& note : config.notes) fmt::print("  note: {}\n", note);
  std::fflush(stdout);
}

void print_step(const unishard::trainer::StepStats& stats, double seconds_per_step) {
  fmt::print("step {:6}  loss {:.6f}  gradient norm {:.4f}  lr {:.3e}  {:.3f} s/step\n", stats.step,
             stats.loss, stats.gradient_norm, stats.learning_rate, seconds_per_step);
  std::fflush(stdout);
}

void print_save(const unishard::trainer::SaveReport& report) {
  const auto bytes = static_cast<double>(report.bytes);
  fmt::print("saved {}: {:.1f} MB in {:.2f} s ({:.0f} MB/s), identity {}\n", report.tag,
             megabytes(bytes), report.seconds, megabytes(bytes) / report.seconds, report.identity);
  std::fflush(stdout);
}

void print_load(const unishard::trainer::LoadReport& report) {
  fmt::print("resumed {} at step {} (saved by world size {}, stage {})\n", report.tag, report.step,
             report.saved_world_size, report.saved_stage);
  for (const std::string& note : report.notes) fmt::print("  note: {}\n", note);
  std::fflush(stdout);
}

void print_memory(const unishard::trainer::Engine& engine,
                  unishard::trainer::Communicator& communicator) {
  const auto memory = engine.memory();
  const std::string line = fmt::format(
      "memory rank {}: parameters {:.2f} MB (peak {:.2f}), master {:.2f}, optimizer {:.2f}, "
      "gradients {:.2f}; "
      "process {:.0f} MB (peak {:.0f})\n",
      communicator.rank(), megabytes(memory.parameters), megabytes(memory.parameters_peak),
      megabytes(memory.master), megabytes(memory.optimizer), megabytes(memory.gradients),
      process_megabytes("VmRSS"), process_megabytes("VmHWM"));
  const auto lines = gather_text(communicator, line);
  if (communicator.rank() != 0) return;
  for (const std::string& each : lines) fmt::print("{}", each);
  std::fflush(stdout);
}

}  // namespace train_gpt
