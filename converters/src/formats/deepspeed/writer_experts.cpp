#include "formats/deepspeed/writer_experts.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace unishard::converters::deepspeed_sink {

using deepspeed::ExpertLayer;
using deepspeed::split_expert;

std::optional<ExpertShares> ExpertShares::of(const Catalog& catalog, const SinkModel& model) {
  ExpertShares shares(catalog, model);
  if (shares.stage_ == 3 || !shares.find_sizes()) return std::nullopt;
  shares.find_layers();
  if (shares.layers_.empty()) return std::nullopt;
  shares.find_places();
  shares.check();
  return shares;
}

ExpertShares::ExpertShares(const Catalog& catalog, const SinkModel& model)
    : model_(model),
      ranks_{catalog.world_size, is_set(catalog.config, {"use_data_before_expert_parallelism"})},
      stage_(catalog.stage) {}

void ExpertShares::find_layers() {
  std::vector<std::set<std::uint32_t>> numbers;  // of each layer's experts
  for (const ModuleEntry& entry : model_.module) {
    const auto name = split_expert(entry.fqn);
    if (!name) continue;
    auto layer = std::ranges::find(layers_, name->prefix, &ExpertLayer::prefix);
    if (layer == layers_.end()) {
      layer = layers_.insert(layer, ExpertLayer{std::string(name->prefix), 0});
      numbers.emplace_back();
    }
    numbers[static_cast<std::size_t>(layer - layers_.begin())].insert(name->number);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].experts = numbers[i].size();
    if (*numbers[i].rbegin() + std::uint64_t{1} == numbers[i].size()) continue;
    raise(ErrorCode::Mismatch,
          fmt::format("of the experts {}0 to {} some are missing, and DeepSpeed loads none without "
                      "the others",
                      layers_[i].prefix, *numbers[i].rbegin()));
  }
}

void ExpertShares::find_places() {
  for (const SinkParameter& parameter : model_.parameters) {
    const auto name = split_expert(parameter.fqn);
    if (!name) {
      places_.emplace_back();
      continue;
    }
    const auto layer = std::ranges::find(layers_, name->prefix, &ExpertLayer::prefix);
    places_.push_back({name->number, layer->experts});
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
      const Place& place = places_[parameter];
      if (place.of == 0) break;  // a group has experts only, or none
      sizes.insert(size);
      if (place.of % size != 0) {
        refuse(size, fmt::format("the {} experts of {}<number>", place.of,
                                 split_expert(model_.parameters[parameter].fqn)->prefix));
      }
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

std::vector<std::size_t> ExpertShares::members(std::size_t group, std::uint32_t share) const {
  std::vector<std::size_t> out;
  for (const std::size_t parameter : model_.groups[group].parameters) {
    const Place& place = places_[parameter];
    if (place.of == 0 || place.number / (place.of / sizes_[group]) == share)
      out.push_back(parameter);
  }
  return out;
}

std::string ExpertShares::local_name(std::size_t group, std::size_t parameter) const {
  const std::string& fqn = model_.parameters[parameter].fqn;
  const Place& place = places_[parameter];
  if (place.of == 0) return fqn;
  return split_expert(fqn)->with_number(place.number % (place.of / sizes_[group]));
}

}  // namespace unishard::converters::deepspeed_sink
