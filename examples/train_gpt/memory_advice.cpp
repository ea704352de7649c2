#include "memory_advice.hpp"

#include "unishard/trainer/batch_plan.hpp"
#include "unishard/trainer/memory_plan.hpp"
#include "unishard/trainer/model_activations.hpp"
#include "unishard/trainer/model_flops.hpp"

#include "console.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <variant>
#include <vector>

namespace train_gpt {
namespace {

using namespace unishard::trainer;
using enum Residence;

std::int64_t elements_of_positions(const GptConfig& model) { return model.context * model.width; }
std::int64_t elements_of_positions(const LlamaConfig&) { return 0; }

/// Norms and biases, which are few, are left out.
PlannedModel size_of(const ModelConfig& model) {
  PlannedModel size;
  for (const UnitFlops& unit : forward_flops(model, 1)) {
    size.parameters += unit.parameters;
    size.largest_unit = std::max(size.largest_unit, unit.parameters);
  }
  std::visit(
      [&](const auto& config) {
        size.parameters += elements_of_positions(config);
        if (!config.tied_head) size.parameters += config.vocabulary * config.width;
      },
      model);
  return size;
}

/// Settings that need less memory than those before them.
struct Remedy {
  const char* words;
  std::uint32_t stage;
  Residence optimizer, parameters;
};
constexpr std::array kRemedies{
    Remedy{"ZeRO stage 1", 1, Device, Device},
    Remedy{"ZeRO stage 2", 2, Device, Device},
    Remedy{"ZeRO stage 3", 3, Device, Device},
    Remedy{"stage 2 with offload_optimizer to cpu", 2, Host, Device},
    Remedy{"stage 3 with offload_optimizer to cpu", 3, Host, Device},
    Remedy{"stage 3 with offload_optimizer and offload_param to cpu", 3, Host, Host},
    Remedy{"stage 3 with offload_optimizer to nvme", 3, File, Device},
    Remedy{"stage 3 with offload_optimizer and offload_param to nvme", 3, File, File}};

std::string gigabytes(std::int64_t bytes) {
  return fmt::format("{:.3g} GB", static_cast<double>(bytes) / 1e9);
}

std::string needs_text(const std::vector<PlannedMemory>& parts, bool computes_on_host) {
  std::string text = gigabytes(planned_bytes(parts, Device));
  if (!computes_on_host) {
    text += " on the device";
    if (const std::int64_t host = planned_bytes(parts, Host); host > 0)
      text += fmt::format(" and {} on the host", gigabytes(host));
  }
  if (const std::int64_t files = planned_bytes(parts, File); files > 0)
    text += fmt::format(", with {} in files", gigabytes(files));
  return text;
}

PlannedModel size_in_run(const RunSize& run) {
  PlannedModel size = size_of(run.model);
  size.world_size = run.world_size;
  size.computes_on_host = run.computes_on_host;
  return size;
}

std::int64_t activations_of(const RunSize& run) {
  return activation_bytes(run.model, {.samples = plan_batch(run.config.batch, run.world_size).micro,
                                      .tokens = run.context,
                                      .compute = run.config.compute,
                                      .recomputes = run.config.activation_checkpointing.has_value(),
                                      .on_cuda = !run.computes_on_host});
}

}  // namespace

RunSize run_size(const Options& options, std::uint32_t world_size, bool computes_on_host) {
  return {.config = options.config,
          .model = options.model,
          .context = options.context,
          .world_size = world_size,
          .computes_on_host = computes_on_host};
}

std::string memory_advice(const RunSize& run) {
  const PlannedModel size = size_in_run(run);
  const auto now = plan_memory(run.config, size);
  std::string text = fmt::format(
      "the training state of a rank takes about {}, and the activations of a "
      "micro-batch {}",
      needs_text(now, run.computes_on_host), gigabytes(activations_of(run)));
  std::int64_t least = planned_bytes(now, Device);
  for (const Remedy& remedy : kRemedies) {
    Config other = run.config;
    other.stage = remedy.stage;
    other.offload_optimizer.residence = remedy.optimizer;
    other.offload_param.residence = remedy.parameters;
    const auto parts = plan_memory(other, size);
    if (planned_bytes(parts, Device) >= least - least / 20) continue;
    least = planned_bytes(parts, Device);
    text +=
        fmt::format("; {} would need {}", remedy.words, needs_text(parts, run.computes_on_host));
  }
  return text +
         "; a smaller micro-batch, recomputation (activation_checkpointing) and more ranks "
         "need less, too";
}

std::string files_advice(const RunSize& run) {
  const PlannedModel size = size_in_run(run);
  const auto in_files = [&](bool ahead) {
    Config other = run.config;
    other.offload_optimizer.super_offload = ahead;
    return planned_bytes(plan_memory(other, size), File);
  };
  const std::int64_t least = in_files(false), ahead = in_files(true);
  if (least == 0) return {};
  std::string text =
      fmt::format("the training state of a rank takes about {} in files", gigabytes(least));
  if (ahead > least) text += fmt::format(" (with \"super_offload\": true {})", gigabytes(ahead));
  return text;
}

std::string planned_memory(const RunSize& run, std::int64_t staging, double program) {
  const auto parts = plan_memory(run.config, size_in_run(run));
  const double device = megabytes(planned_bytes(parts, Device));
  const double host = megabytes(planned_bytes(parts, Host));
  const double activations = megabytes(activations_of(run));
  const double copies = megabytes(staging);
  std::string text = fmt::format("memory planned for a rank: state {:.2f} MB, activations {:.2f}",
                                 run.computes_on_host ? device + host : device, activations);
  if (!run.computes_on_host) text += fmt::format("; on the host state {:.2f} MB", host);
  return text + fmt::format(
                    ", staging {:.2f}; program itself {:.0f} MB, process {:.0f}\n", copies, program,
                    program + host + copies + (run.computes_on_host ? device + activations : 0));
}

}  // namespace train_gpt
