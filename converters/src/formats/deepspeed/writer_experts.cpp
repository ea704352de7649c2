#include "formats/deepspeed/writer_experts.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace unishard::converters::deepspeed_sink {

using deepspeed::ExpertLayer;
using deepspeed::ExpertName;
using deepspeed::split_expert;

std::optional<ExpertShares> ExpertShares::of(const Catalog& catalog, const SinkModel& model) {
  ExpertShares shares(catalog, model);
  shares.find_layers();
  if (shares.layers_.empty() || shares.stage_ == 3 || !shares.find_sizes()) return std::nullopt;
  shares.check();
  return shares;
}

ExpertShares::ExpertShares(const Catalog& catalog, const SinkModel& model)
    : model_(model),
      ranks_{catalog.world_size, is_set(catalog.config, {"use_data_before_expert_parallelism"})},
      stage_(catalog.stage) {}

void ExpertShares::find_layers() {
  for (const ModuleEntry& entry : model_.module) {
    const auto name = split_expert(entry.fqn);
    if (!name) continue;
    auto layer = std::ranges::find(layers_, name->prefix, &ExpertLayer::prefix);
    if (layer == layers_.end())
      layer = layers_.insert(layer, ExpertLayer{std::string(name->prefix), 0});
    layer->experts = std::max<std::uint64_t>(layer->experts, std::uint64_t{name->number} + 1);
  }
}

/// Returns whether the groups of experts have all experts, and nothing else.
bool ExpertShares::find_sizes() {
  std::size_t grouped = 0;
  for (const SinkGroup& group : model_.groups) {
    const std::uint64_t told = deepspeed::expert_ranks_of(group.settings, "the parameter groups");
    const auto is_expert = [&](std::size_t parameter) {
      return split_expert(model_.parameters[parameter].fqn).has_value();
    };
    const auto experts = std::ranges::count_if(group.parameters, is_expert);
    if (experts != (told > 0 ? std::ssize(group.parameters) : 0)) return false;
    grouped += static_cast<std::size_t>(experts);
    sizes_.push_back(
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(told, 1, limits::kWorldSize)));
  }
  const auto is_expert = [](const ModuleEntry& entry) {
    return split_expert(entry.fqn).has_value();
  };
  return std::cmp_equal(std::ranges::count_if(model_.module, is_expert), grouped);
}

void ExpertShares::check() const {
  std::set<std::uint32_t> sizes;
  const auto refuse = [](std::uint32_t size, const std::string& what) {
    raise(ErrorCode::InvalidArgument, fmt::format("{} expert ranks do not divide {}", size, what),
          "choose another number of expert ranks, DeepSpeed's ep_size: --ep-size");
  };
  for (std::size_t g = 0; g < sizes_.size(); ++g) {
    const std::uint32_t size = sizes_[g];
    if (ranks_.world_size % size != 0)
      refuse(size, fmt::format("the {} ranks of the result", ranks_.world_size));
    for (const std::size_t parameter : model_.groups[g].parameters) {
      const auto name = split_expert(model_.parameters[parameter].fqn);
      if (!name) break;
      sizes.insert(size);
      const auto layer = std::ranges::find(layers_, name->prefix, &ExpertLayer::prefix);
      if (layer->experts % size != 0)
        refuse(size, fmt::format("the {} experts of {}<number>", layer->experts, layer->prefix));
    }
  }
  if (stage_ > 0 || sizes.size() == 1) return;
  raise(ErrorCode::Unsupported,
        "experts in groups of several sizes at stage 0, whose optimizer states have no names",
        "pass --ep-size N to have one size, or --stage 1 or 2");
}

std::uint32_t ExpertShares::largest() const { return *std::ranges::max_element(sizes_); }

std::uint32_t ExpertShares::share(std::size_t group, std::uint32_t rank) const {
  return static_cast<std::uint32_t>(ranks_.of(rank, sizes_[group]));
}

std::uint32_t ExpertShares::place(std::size_t group, std::uint32_t rank) const {
  return static_cast<std::uint32_t>(ranks_.place(rank, sizes_[group]));
}

std::uint64_t ExpertShares::held(const ExpertName& name, std::size_t group) const {
  return std::ranges::find(layers_, name.prefix, &ExpertLayer::prefix)->experts / sizes_[group];
}

std::vector<std::size_t> ExpertShares::members(std::size_t group, std::uint32_t share) const {
  std::vector<std::size_t> out;
  for (const std::size_t parameter : model_.groups[group].parameters) {
    const auto name = split_expert(model_.parameters[parameter].fqn);
    if (!name || name->number / held(*name, group) == share) out.push_back(parameter);
  }
  return out;
}

std::string ExpertShares::local_name(std::size_t group, std::size_t parameter) const {
  const std::string& fqn = model_.parameters[parameter].fqn;
  const auto name = split_expert(fqn);
  return name ? name->with_number(name->number % held(*name, group)) : fqn;
}

}  // namespace unishard::converters::deepspeed_sink
