#include "views/estimate_view.hpp"

#include "support/size_text.hpp"
#include "views/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace unishard::cli {
namespace {

using tools::Estimate;
using tools::format_bytes;
using tools::Offload;
using tools::StageNeeds;

constexpr double kGiB = 1024.0 * 1024 * 1024;

const StageNeeds& needs_of(const Estimate& all, std::uint32_t stage, Offload offload,
                           bool zero_init = true) {
  const auto& list = zero_init ? all.stages : all.without_zero_init;
  return *std::ranges::find_if(
      list, [&](const StageNeeds& each) { return each.stage == stage && each.offload == offload; });
}

std::string title(const tools::Setup& setup, const std::string& model) {
  return fmt::format(
      "Estimated memory needed for params, optim states and gradients for a:\nHW: Setup with {} "
      "{}, {} {} per node.\nSW: Model with {}.\n  per CPU  |  per GPU |   Options\n",
      setup.nodes, setup.nodes > 1 ? "nodes" : "node", setup.devices_per_node,
      setup.devices_per_node > 1 ? "GPUs" : "GPU", model);
}

std::string states_row(const StageNeeds& needs, const std::string& options) {
  return fmt::format(" {:7.2f}GB | {:6.2f}GB | {}\n", static_cast<double>(needs.host) / kGiB,
                     static_cast<double>(needs.device) / kGiB, options);
}

std::string device_word(bool is_offloaded) { return is_offloaded ? "cpu " : "none"; }

std::string stage2_table(const Estimate& all) {
  std::string text =
      title(all.setup, fmt::format("{}M total params", all.model.parameters / 1000000));
  for (const Offload offload : {Offload::Optimizer, Offload::None})
    text += states_row(needs_of(all, 2, offload),
                       fmt::format("offload_optimizer={}", device_word(offload != Offload::None)));
  return text;
}

std::string stage3_table(const Estimate& all) {
  std::string text = title(
      all.setup, fmt::format("{}M total params, {}M largest layer params",
                             all.model.parameters / 1000000, all.model.largest_layer / 1000000));
  for (const Offload offload :
       {Offload::OptimizerAndParameters, Offload::Optimizer, Offload::None}) {
    for (const bool zero_init : {true, false})
      text += states_row(needs_of(all, 3, offload, zero_init),
                         fmt::format("offload_param={}, offload_optimizer={}, zero_init={}",
                                     device_word(offload == Offload::OptimizerAndParameters),
                                     device_word(offload != Offload::None), zero_init ? 1 : 0));
  }
  return text;
}

std::string_view place_name(trainer::Residence place) {
  if (place == trainer::Residence::Device) return "device";
  return place == trainer::Residence::Host ? "cpu" : "nvme";
}

std::string precision_name(const std::optional<trainer::Config>& config) {
  if (!config) return "bf16, AdamW";
  const std::string_view type = config->compute == DType::Float32    ? "fp32"
                                : config->compute == DType::BFloat16 ? "bf16"
                                                                     : "fp16";
  return fmt::format("{}, {}", type, config->optimizer);
}

/// The column of a part of the memory.
std::string_view column_of(std::string_view part) {
  if (part.ends_with("parameters")) return "parameters";
  if (part == "gradient sums") return "gradients";
  if (part == "master weights" || part == "optimizer states") return "optimizer";
  return "buffers";
}

/// The needs of each rank at every stage, by kind of memory and by place.
std::string ranks_table(const Estimate& all) {
  using enum trainer::Residence;
  constexpr std::array kKinds{"parameters", "gradients", "optimizer", "buffers"};
  std::vector<Table::Column> columns{{"plan"}};
  for (const std::string_view title : kKinds) columns.push_back({std::string(title), Align::Right});
  for (const char* title : {"device", "host", "nvme"}) columns.push_back({title, Align::Right});
  Table table(columns);
  for (const tools::RankNeeds& needs : all.ranks) {
    std::map<std::string_view, std::uint64_t> kinds;
    for (const trainer::PlannedMemory& part : needs.parts)
      kinds[column_of(part.name)] += static_cast<std::uint64_t>(part.bytes);
    std::vector<std::string> cells{(needs.is_configured ? "* " : "  ") + plan_name(needs)};
    for (const std::string_view kind : kKinds) cells.push_back(format_bytes(kinds[kind]));
    cells.push_back(format_bytes(needs.at(Device) + all.activations.value_or(0)));
    for (const trainer::Residence place : {Host, File}) {
      cells.push_back(needs.at(place) > 0 ? format_bytes(needs.at(place)) : "");
    }
    table.add(std::move(cells));
  }
  const std::string activations =
      all.activations
          ? fmt::format("with activations and logits, at most {}", format_bytes(*all.activations))
          : "without activations (--micro-batch, --context)";
  return fmt::format("UniShard's trainer: each of {} ranks, {}; device {}\n{}", all.setup.devices(),
                     precision_name(all.setup.config), activations, table.text());
}

/// Every part of what the configuration asks for.
std::string configured_parts(const Estimate& all) {
  const auto found = std::ranges::find_if(all.ranks, &tools::RankNeeds::is_configured);
  if (found == all.ranks.end()) return "";
  Table table({{"each rank"}, {"where"}, {"bytes", Align::Right}});
  for (const trainer::PlannedMemory& part : found->parts)
    table.add({std::string(part.name), std::string(place_name(part.place)),
               format_bytes(static_cast<std::uint64_t>(part.bytes))});
  if (all.activations)
    table.add({"activations and logits, at most", "device", format_bytes(*all.activations)});
  table.add({"copy for an asynchronous save", "cpu", format_bytes(found->staging)});
  return fmt::format("\n* The configuration: {}\n{}", plan_name(*found), table.text());
}

}  // namespace

std::string estimate_text(const Estimate& all) {
  std::string text;
  if (all.model.is_adapter)
    text =
        "note: this is an adapter; its base model, which each rank holds too, is not counted\n\n";
  text += "ZeRO stage 2 (as DeepSpeed estimates it)\n" + stage2_table(all) +
          "\nZeRO stage 3 (as DeepSpeed estimates it)\n" + stage3_table(all) +
          "\nEvery stage as DeepSpeed counts it, memory of a device and of a node\n";
  for (const StageNeeds& needs : all.stages)
    text += fmt::format("  {:<47} {:>12} {:>12}\n", plan_name(needs), format_bytes(needs.device),
                        format_bytes(needs.host));
  text += "\n" + ranks_table(all) + configured_parts(all);
  text += fmt::format(
      "\ncheckpoint   {} (float32 weights and states; 16-bit weights follow from them), {} at "
      "{}/s on each "
      "node\nweights      {} in float32, {} in 16 bits, as `unishard convert` writes them\n"
      "tools        1 GiB of memory (--memory-limit), whatever the model's size\n"
      "recommended  {}\n",
      format_bytes(all.checkpoint), tools::format_duration(all.save_seconds),
      format_bytes(all.setup.disk_bytes_per_second), format_bytes(all.weights),
      format_bytes(all.weights / 2), all.recommendation);
  return text;
}

Json estimate_json(const Estimate& all) {
  constexpr std::array kOffloads{"none", "optimizer", "optimizer and parameters"};
  Json stages = Json::array();
  for (const auto* list : {&all.stages, &all.without_zero_init}) {
    for (const StageNeeds& needs : *list)
      stages.push_back({{"stage", needs.stage},
                        {"offload", kOffloads.at(static_cast<std::size_t>(needs.offload))},
                        {"zero_init", needs.zero_init},
                        {"host_bytes", needs.host},
                        {"device_bytes", needs.device}});
  }
  Json ranks = Json::array();
  for (const tools::RankNeeds& needs : all.ranks) {
    Json parts = Json::array();
    for (const trainer::PlannedMemory& part : needs.parts)
      parts.push_back(
          {{"name", part.name}, {"place", place_name(part.place)}, {"bytes", part.bytes}});
    ranks.push_back({{"stage", needs.stage},
                     {"optimizer", place_name(needs.optimizer)},
                     {"parameters", place_name(needs.parameters)},
                     {"configured", needs.is_configured},
                     {"parts", std::move(parts)},
                     {"device_bytes", needs.at(trainer::Residence::Device)},
                     {"host_bytes", needs.at(trainer::Residence::Host)},
                     {"file_bytes", needs.at(trainer::Residence::File)},
                     {"staging_bytes", needs.staging}});
  }
  Json json = {
      {"parameters", all.model.parameters}, {"largest_layer", all.model.largest_layer},
      {"nodes", all.setup.nodes},           {"devices_per_node", all.setup.devices_per_node},
      {"stages", std::move(stages)},        {"ranks", std::move(ranks)},
      {"checkpoint_bytes", all.checkpoint}, {"save_seconds", all.save_seconds},
      {"weights_bytes", all.weights},       {"recommendation", all.recommendation}};
  if (all.model.is_adapter) json["is_adapter"] = true;
  if (all.activations) json["activation_bytes"] = *all.activations;
  return json;
}

}  // namespace unishard::cli
