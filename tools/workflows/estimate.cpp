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
  const double tokens = static_cast<double>(*setup.micro_batch * *setup.context);
  const bool is_fp32 = setup.config && setup.config->compute == DType::Float32;
  const double wide = is_fp32 ? 2 : 1;
  const double stream = tokens * static_cast<double>(model.hidden) * wide;
  const auto layers = static_cast<double>(model.layers);
  const bool recomputes =
      setup.recomputes || (setup.config && setup.config->activation_checkpointing);
  const double kept = recomputes ? 2 * stream * layers + 34 * stream : 34 * stream * layers;
  constexpr double kLogitBytes = 12;  // logits, their softmax and gradient in float32
  constexpr double kMost = 1e18;
  return truncated(
      std::min(kept + kLogitBytes * tokens * static_cast<double>(model.vocabulary), kMost));
}

/// Float32 weights and states. Of the matrices that Muon updates, a checkpoint has one state.
std::uint64_t checkpoint_bytes(const ModelSize& model, const trainer::Config& config) {
  const auto states = static_cast<std::uint64_t>(trainer::optimizer_states(config));
  const bool is_muon = trainer::optimizer_kind(config.optimizer) == trainer::OptimizerKind::Muon;
  return 4 * ((1 + states) * model.parameters - (is_muon ? model.matrices : 0));
}

/// Returns the plans from the fastest to the one with the least memory.
std::vector<RankNeeds> plans_of_ranks() {
  using enum trainer::Residence;
  std::vector<RankNeeds> plans;
  for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) plans.push_back({.stage = stage, .parts = {}});
  for (const trainer::Residence optimizer : {Host, File}) {
    for (const std::uint32_t stage : {2u, 3u})
      plans.push_back({.stage = stage, .optimizer = optimizer, .parts = {}});
    plans.push_back({.stage = 3, .optimizer = optimizer, .parameters = optimizer, .parts = {}});
  }
  return plans;
}

bool is_plan_of(const trainer::Config& config, const RankNeeds& plan) {
  return plan.stage == config.stage && plan.optimizer == config.offload_optimizer.residence &&
         plan.parameters == config.offload_param.residence;
}

/// Parameters in files need the optimizer's settings of files; a plan takes the configuration's.
std::vector<RankNeeds> needs_of_ranks(const ModelSize& model, const Setup& setup) {
  trainer::Config config;
  config.compute = DType::BFloat16;
  if (setup.config) config = *setup.config;
  std::vector<RankNeeds> plans = plans_of_ranks();
  const auto is_its_plan = [&](const RankNeeds& plan) { return is_plan_of(config, plan); };
  if (setup.config && std::ranges::none_of(plans, is_its_plan))
    plans.push_back({.stage = config.stage,
                     .optimizer = config.offload_optimizer.residence,
                     .parameters = config.offload_param.residence,
                     .parts = {}});
  const std::uint64_t unit = model.largest_unit > 0 ? model.largest_unit : model.largest_layer;
  const trainer::PlannedModel planned{
      .parameters = static_cast<std::int64_t>(model.parameters),
      .largest_unit = static_cast<std::int64_t>(unit),
      .world_size = static_cast<std::uint32_t>(setup.devices()),
  };
  const std::uint64_t states = 1 + static_cast<std::uint64_t>(trainer::optimizer_states(config));
  for (RankNeeds& plan : plans) {
    plan.is_configured = setup.config && is_plan_of(*setup.config, plan);
    trainer::Config with = config;
    with.stage = plan.stage;
    with.offload_optimizer.residence = plan.optimizer;
    with.offload_param.residence = plan.parameters;
    plan.parts = trainer::plan_memory(with, planned);
    plan.staging = 4 * states * model.parameters / setup.devices();
  }
  return plans;
}

/// Returns the needs of a plan in words: those of a device, and of a node where there are any.
std::string needs_text(const Estimate& all, const RankNeeds& needs) {
  using enum trainer::Residence;
  const std::uint64_t ranks = all.setup.devices_per_node;
  std::string text =
      fmt::format("{} of a device{}", format_bytes(needs.at(Device) + all.activations.value_or(0)),
                  all.activations ? " with activations" : " without activations");
  if (needs.at(Host) > 0)
    text += fmt::format(", {} of a node's memory", format_bytes(needs.at(Host) * ranks));
  if (needs.at(File) > 0)
    text += fmt::format(", {} of files on each node", format_bytes(needs.at(File) * ranks));
  return text;
}

bool fits(const Estimate& all, const RankNeeds& needs) {
  const Setup& setup = all.setup;
  const std::uint64_t host = needs.at(trainer::Residence::Host) * setup.devices_per_node;
  return needs.at(trainer::Residence::Device) + all.activations.value_or(0) <=
             *setup.device_bytes &&
         (!setup.host_bytes || host <= *setup.host_bytes);
}

/// Names the first plan that fits, and says whether the configuration's does.
std::string recommend(const Estimate& all) {
  const Setup& setup = all.setup;
  if (!setup.device_bytes) return "give --device-memory (and --host-memory) for a recommendation";
  const std::string devices =
      fmt::format("{} × {}", setup.devices(), format_bytes(*setup.device_bytes));
  const auto is_fit = [&](const RankNeeds& needs) { return fits(all, needs); };
  std::string own;
  const auto configured = std::ranges::find_if(all.ranks, &RankNeeds::is_configured);
  if (configured != all.ranks.end()) {
    own = fmt::format(
        "; the configuration ({}) {}", plan_name(*configured),
        is_fit(*configured) ? "fits, too" : "does not fit: " + needs_text(all, *configured));
  }
  const auto first = std::ranges::find_if(all.ranks, is_fit);
  if (first != all.ranks.end()) {
    return fmt::format("fits on {} from {}: {}{}", devices, plan_name(*first),
                       needs_text(all, *first), first == configured ? "" : own);
  }
  const auto least = std::ranges::min_element(
      all.ranks, {}, [](const RankNeeds& needs) { return needs.at(trainer::Residence::Device); });
  return fmt::format("does not fit on {}: {} needs {}; use more or larger devices{}", devices,
                     plan_name(*least), needs_text(all, *least),
                     all.activations ? ", or a smaller --micro-batch" : "");
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

std::string plan_name(const RankNeeds& needs) {
  const auto place = [](trainer::Residence residence) {
    return residence == trainer::Residence::Host ? "cpu" : "nvme";
  };
  const bool has_optimizer = needs.optimizer != trainer::Residence::Device;
  const bool has_parameters = needs.parameters != trainer::Residence::Device;
  std::string name = fmt::format("stage {}", needs.stage);
  if (has_optimizer && needs.optimizer == needs.parameters)
    return name +
           fmt::format(" with optimizer and parameter offload to {}", place(needs.optimizer));
  if (has_optimizer) name += fmt::format(" with optimizer offload to {}", place(needs.optimizer));
  if (has_parameters)
    name += fmt::format("{} parameter offload to {}", has_optimizer ? " and" : " with",
                        place(needs.parameters));
  return name;
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
  all.ranks = needs_of_ranks(model, setup);
  all.activations = activation_bytes(model, setup);
  all.checkpoint = checkpoint_bytes(model, setup.config.value_or(trainer::Config{}));
  all.weights = 4 * model.parameters;
  all.save_seconds =
      static_cast<double>(all.checkpoint) /
      (static_cast<double>(setup.disk_bytes_per_second) * static_cast<double>(setup.nodes));
  all.recommendation = recommend(all);
  return all;
}

}  // namespace unishard::tools
