#include "workflows/estimate.hpp"

#include "support/size_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::tools {
namespace {

std::uint64_t truncated(double bytes) { return static_cast<std::uint64_t>(bytes); }

/// Float32 masters and two moments, 16-bit and float32 gradients: what the stages split.
constexpr std::uint64_t kSplitBytes = 18;

StageNeeds replicated_needs(const ModelSize& model, const Setup& setup, std::uint32_t stage) {
  const double all = static_cast<double>(model.parameters);
  const double devices = static_cast<double>(setup.devices());
  StageNeeds needs{.stage = stage};
  const double optimizer = 12 * all / (stage == 1 ? devices : 1);
  needs.device = 8 * model.parameters + truncated(optimizer);
  needs.host =
      truncated(all * 4 * static_cast<double>(setup.devices_per_node) * setup.buffer_factor);
  return needs;
}

StageNeeds stage2_needs(const ModelSize& model, const Setup& setup, Offload offload) {
  const double all = static_cast<double>(model.parameters);
  StageNeeds needs{.stage = 2, .offload = offload};
  needs.device = 2 * model.parameters;
  if (offload == Offload::None) {
    needs.device += truncated(static_cast<double>(kSplitBytes * model.parameters) /
                              static_cast<double>(setup.devices()));
    needs.host =
        truncated(all * 4 * static_cast<double>(setup.devices_per_node) * setup.buffer_factor);
  } else {
    const double each = std::max(4 * static_cast<double>(setup.devices()), 16.0);
    needs.host = truncated(all * each * setup.buffer_factor);
  }
  return needs;
}

StageNeeds stage3_needs(const ModelSize& model, const Setup& setup, Offload offload,
                        bool zero_init) {
  const double all = static_cast<double>(model.parameters);
  const double per_node = 1 / static_cast<double>(setup.nodes);
  const double whole = 4 * static_cast<double>(setup.devices_per_node);  // a copy for each device
  const auto split = [&](std::uint64_t bytes) {
    return truncated(static_cast<double>(bytes * model.parameters) /
                     static_cast<double>(setup.devices()));
  };
  StageNeeds needs{.stage = 3, .offload = offload, .zero_init = zero_init};
  needs.device = 4 * model.largest_layer;
  if (offload == Offload::None) {
    needs.device += split(kSplitBytes);
    const double loaded = zero_init ? static_cast<double>(model.largest_layer) : all;
    needs.host = truncated(loaded * whole * setup.buffer_factor);
    return needs;
  }
  const bool is_all = offload == Offload::OptimizerAndParameters;
  if (!is_all) needs.device += split(2);
  // The order of the factors is DeepSpeed's, since it decides the last digit.
  const double bytes = (is_all ? 18.0 : 16.0);
  needs.host = truncated(zero_init ? all * bytes * per_node * setup.buffer_factor
                                   : all * std::max(whole, bytes * per_node) * setup.buffer_factor);
  return needs;
}

/// An upper estimate for fused attention: 34 bytes for each element of the residual stream and
/// layer (Korthikanti et al. 2022), and the logits and their gradient in float32.
std::optional<std::uint64_t> activation_bytes(const ModelSize& model, const Setup& setup) {
  if (!setup.micro_batch || !setup.context || model.layers == 0) return std::nullopt;
  const std::uint64_t tokens = *setup.micro_batch * *setup.context;
  const std::uint64_t layer = 34 * tokens * model.hidden;
  const std::uint64_t kept =
      setup.recomputes ? 2 * tokens * model.hidden * model.layers + layer : layer * model.layers;
  return kept + 3 * 4 * tokens * model.vocabulary;
}

std::string recommend(const Estimate& all) {
  const Setup& setup = all.setup;
  if (!setup.device_bytes) return "give --device-memory (and --host-memory) for a recommendation";
  const std::uint64_t activations = all.activations.value_or(0);
  const std::string devices =
      fmt::format("{} × {}", setup.devices(), format_bytes(*setup.device_bytes));
  for (const StageNeeds& needs : all.stages) {
    const std::uint64_t device = needs.device + activations;
    const bool fits_host = !setup.host_bytes || needs.host <= *setup.host_bytes;
    if (device > *setup.device_bytes || !fits_host) continue;
    return fmt::format("fits on {} from {}: {} of a device{}, {} of a node's memory", devices,
                       plan_name(needs), format_bytes(device),
                       all.activations ? " with activations" : " without activations",
                       format_bytes(needs.host));
  }
  const StageNeeds& least = all.stages.back();
  return fmt::format(
      "does not fit on {}: {} needs {} of a device and {} of a node's memory; use more nodes, or "
      "NVMe for both (offload_optimizer and offload_param, {} of files on each node)",
      devices, plan_name(least), format_bytes(least.device + activations), format_bytes(least.host),
      format_bytes(truncated(14 * static_cast<double>(all.model.parameters) /
                             static_cast<double>(setup.nodes))));
}

}  // namespace

std::string plan_name(const StageNeeds& needs) {
  switch (needs.offload) {
    case Offload::None:
      return fmt::format("stage {}", needs.stage);
    case Offload::Optimizer:
      return fmt::format("stage {} with optimizer offload", needs.stage);
    case Offload::OptimizerAndParameters:
      break;
  }
  return fmt::format("stage {} with optimizer and parameter offload", needs.stage);
}

Estimate estimate(const ModelSize& model, const Setup& setup) {
  using enum Offload;
  Estimate all;
  all.model = model;
  all.setup = setup;
  for (const std::uint32_t stage : {0u, 1u})
    all.stages.push_back(replicated_needs(model, setup, stage));
  for (const Offload offload : {None, Optimizer})
    all.stages.push_back(stage2_needs(model, setup, offload));
  for (const Offload offload : {None, Optimizer, OptimizerAndParameters}) {
    all.stages.push_back(stage3_needs(model, setup, offload, true));
    all.without_zero_init.push_back(stage3_needs(model, setup, offload, false));
  }
  // Stage 2 with offload moves more than stage 3 without it.
  std::swap(all.stages[3], all.stages[4]);
  all.activations = activation_bytes(model, setup);
  all.checkpoint = 12 * model.parameters;
  all.weights = 4 * model.parameters;
  all.save_seconds =
      static_cast<double>(all.checkpoint) /
      (static_cast<double>(setup.disk_bytes_per_second) * static_cast<double>(setup.nodes));
  all.recommendation = recommend(all);
  return all;
}

}  // namespace unishard::tools
