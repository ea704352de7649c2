#include "formats/deepspeed/writer_layout.hpp"

#include "unishard/format/dtype.hpp"

#include <algorithm>

namespace unishard::converters::deepspeed_sink {
namespace {

/// DeepSpeed's nccl_start_alignment_factor: the elements of every rank's piece are a multiple of
/// it.
constexpr std::uint64_t kPieceAlign = 2;
/// With parameter_alignment, bytes of the module's type between the starts of parameters.
constexpr std::uint64_t kParameterAlignBytes = 16;
constexpr std::uint64_t kDefaultSubGroupSize = 1'000'000'000;

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns the parameters at positions 0 modulo the world size, then those at 1, ...
std::vector<std::size_t> round_robin_order(const std::vector<std::size_t>& parameters,
                                           std::uint32_t world_size) {
  std::vector<std::size_t> order;
  order.reserve(parameters.size());
  for (std::size_t first = 0; first < std::min<std::size_t>(world_size, parameters.size());
       ++first) {
    for (std::size_t i = first; i < parameters.size(); i += world_size) {
      order.push_back(parameters[i]);
    }
  }
  return order;
}

/// DeepSpeed does so where it offloads the optimizer, and where its BF16_Optimizer works.
bool cuts_momenta(const Catalog& catalog) {
  const Json& config = catalog.config;
  const Json* place = setting(config, {"zero_optimization", "offload_optimizer", "device"});
  if (place != nullptr && *place != "none") return true;
  const Json* sums = setting(config, {"data_types", "grad_accum_dtype"});
  return catalog.stage == 1 && is_set(config, {"bf16", "enabled"}) && sums != nullptr &&
         *sums == "fp32";
}

void add_whole_states(const SinkModel& model, FlatVector& vector) {
  vector.state_length = 0;
  for (const Slot& slot : vector.slots) {
    const std::uint64_t elements = model.parameters[slot.parameter].elements;
    vector.state_slots.push_back({slot.parameter, {0, elements}, *vector.state_length});
    *vector.state_length += elements;
  }
}

}  // namespace

PartitionRules partition_rules(const Catalog& catalog) {
  PartitionRules rules;
  rules.world_size = catalog.world_size;
  rules.round_robin = is_set(catalog.config, {"zero_optimization", "round_robin_gradients"});
  rules.aligned = is_set(catalog.config, {"zero_optimization", "parameter_alignment"});
  rules.cuts_momenta = cuts_momenta(catalog);
  rules.sub_group_size = kDefaultSubGroupSize;
  const Json* size = setting(catalog.config, {"zero_optimization", "sub_group_size"});
  if (size != nullptr && size->is_number()) {
    rules.sub_group_size = static_cast<std::uint64_t>(std::clamp(size->get<double>(), 0.0, 1e18));
  }
  return rules;
}

std::uint64_t PartitionedGroup::padding(std::uint32_t rank) const {
  const std::uint64_t begin = rank * piece, end = begin + piece;
  return end - std::clamp(used, begin, end);
}

PartitionedGroup partition(const SinkModel& model, const std::vector<std::size_t>& parameters,
                           const PartitionRules& rules) {
  const std::uint64_t align = rules.aligned ? kParameterAlignBytes / size_of(model.precision) : 1;
  PartitionedGroup out;
  out.order = parameters;
  out.cuts_momenta = rules.cuts_momenta;
  if (rules.round_robin) out.order = round_robin_order(out.order, rules.world_size);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < out.order.size(); ++i) {
    out.offsets.push_back(at);
    at += model.parameters[out.order[i]].elements;
    const bool is_last = i + 1 == out.order.size();
    out.gaps.push_back(is_last ? 0 : rounded_up(at, align) - at);
    at += out.gaps.back();
  }
  out.used = at;
  out.piece = rounded_up(at, kPieceAlign * rules.world_size) / rules.world_size;
  return out;
}

FlatVector piece_of(const SinkModel& model, std::size_t group, const PartitionedGroup& partitioned,
                    std::uint32_t rank) {
  const ElementRange window{rank * partitioned.piece, (rank + 1) * partitioned.piece};
  FlatVector out{.group = group, .shape = {partitioned.piece}, .slots = {}, .is_whole = false};
  const auto first = std::ranges::upper_bound(partitioned.offsets, window.begin);
  auto i = static_cast<std::size_t>(first - partitioned.offsets.begin());
  if (i > 0) --i;  // the previous one may reach into the window
  for (; i < partitioned.order.size() && partitioned.offsets[i] < window.end; ++i) {
    const std::size_t parameter = partitioned.order[i];
    const std::uint64_t offset = partitioned.offsets[i];
    const ElementRange part =
        intersect(window, {offset, offset + model.parameters[parameter].elements});
    if (part.empty()) continue;
    out.slots.push_back(
        {parameter, {part.begin - offset, part.end - offset}, part.begin - window.begin});
  }
  if (model.groups[group].is_muon() && !partitioned.cuts_momenta) add_whole_states(model, out);
  return out;
}

std::vector<SubGroup> sub_groups(const SinkModel& model, const PartitionRules& rules) {
  std::vector<SubGroup> out;
  for (std::size_t g = 0; g < model.groups.size(); ++g) {
    bool open = false;
    std::uint64_t filled = 0;
    for (const std::size_t parameter : model.groups[g].parameters) {
      if (!open) out.push_back({.group = g, .parameters = {}});
      out.back().parameters.push_back(parameter);
      filled += own_length(model.parameters[parameter].elements, rules.world_size);
      open = filled < rules.sub_group_size;
      if (!open) filled = 0;
    }
  }
  return out;
}

FlatVector piece_of(const SinkModel& model, const SubGroup& sub_group, std::uint32_t rank,
                    std::uint32_t world_size) {
  FlatVector out{.group = sub_group.group, .shape = {}, .slots = {}, .is_whole = false};
  std::uint64_t at = 0;
  for (const std::size_t parameter : sub_group.parameters) {
    const std::uint64_t elements = model.parameters[parameter].elements;
    const ElementRange range = own_range(elements, rank, world_size);
    if (!range.empty()) out.slots.push_back({parameter, range, at});
    at += own_length(elements, world_size);
  }
  out.shape = {at};
  return out;
}

std::uint64_t own_length(std::uint64_t elements, std::uint32_t world_size) {
  return (elements + world_size - 1) / world_size;
}

ElementRange own_range(std::uint64_t elements, std::uint32_t rank, std::uint32_t world_size) {
  const std::uint64_t length = own_length(elements, world_size);
  return {std::min(elements, rank * length), std::min(elements, (rank + 1) * length)};
}

std::vector<FlatVector> fused_groups(const SinkModel& model, const GroupMembers& groups) {
  std::vector<FlatVector> out;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    FlatVector group{.group = g, .shape = {}, .slots = {}, .is_whole = false};
    std::uint64_t at = 0;
    for (const std::size_t parameter : groups[g]) {
      const std::uint64_t elements = model.parameters[parameter].elements;
      if (elements > 0) group.slots.push_back({parameter, {0, elements}, at});
      at += elements;
    }
    group.shape = {at};
    out.push_back(std::move(group));
  }
  return out;
}

std::vector<FlatVector> single_parameters(const SinkModel& model, const GroupMembers& groups) {
  std::vector<FlatVector> out;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const std::size_t parameter : groups[g]) {
      const SinkParameter& found = model.parameters[parameter];
      out.push_back({g, found.shape, {{parameter, {0, found.elements}, 0}}, true});
    }
  }
  return out;
}

}  // namespace unishard::converters::deepspeed_sink
