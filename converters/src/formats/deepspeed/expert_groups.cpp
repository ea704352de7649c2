#include "formats/deepspeed/expert_groups.hpp"

#include "unishard/format/error.hpp"

#include "formats/deepspeed/rank_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace unishard::converters::deepspeed {
namespace {

[[noreturn]] void raise_contradiction(const std::string& file, const std::string& problem) {
  raise(ErrorCode::Corrupt, fmt::format("{}: {}", file, problem),
        "use another checkpoint, or find the files that belong together");
}

/// Returns items[order[i]] for each i, of a list with one item per group; other lists unchanged.
template <class Items>
Items reordered(const Items& items, const std::vector<std::size_t>& order) {
  if (items.size() != order.size()) return items;
  Items out;
  for (const std::size_t i : order) out.push_back(items[i]);
  return out;
}

}  // namespace

std::uint64_t ExpertRanks::of(std::uint64_t rank, std::uint64_t size) const {
  return is_data_first ? rank / (world_size / size) : rank % size;
}

std::uint64_t ExpertRanks::place(std::uint64_t rank, std::uint64_t size) const {
  return is_data_first ? rank % (world_size / size) : rank / size;
}

std::uint64_t expert_ranks_of(const Json& settings, std::string_view file) {
  const bool has_experts = settings.is_object() && settings.value("moe", Json()) == Json(true);
  if (!has_experts) return 0;
  const Json name = settings.value("name", Json());
  const auto size = match_numbers("ep_size_#", name.is_string() ? name.get<std::string>() : "");
  if (!size || size->front() == 0) {
    raise_contradiction(std::string(file),
                        fmt::format("a group of experts is called {}, not ep_size_<number>",
                                    unishard::quote(name.dump())));
  }
  return size->front();
}

ExpertGroups::ExpertGroups(const ExpertFiles& experts, const ShapeGroups& shapes,
                           const OptimizerFile& first, const ExpertRanks& ranks)
    : experts_(experts), first_(first), ranks_(ranks) {
  const bool has_settings = first.settings.is_array() && first.settings.size() == shapes.size();
  if (!has_settings || first.groups.size() != shapes.size()) {
    raise_contradiction(first.name,
                        fmt::format("{} flat groups and {} parameter groups; "
                                    "param_shapes has {}",
                                    first.groups.size(), first.settings.size(), shapes.size()));
  }
  for (std::size_t g = 0; g < shapes.size(); ++g) {
    sizes_.push_back(expert_ranks_of(first.settings[g], first.name));
    check_count(g);
    add_group(g, shapes[g]);
  }
}

void ExpertGroups::check_count(std::size_t group) const {
  const std::uint64_t size = sizes_[group], world_size = ranks_.world_size;
  const auto& counts = first_.partition_counts;
  const std::uint64_t wanted = size == 0 ? world_size : world_size / size;
  const bool is_told = counts.size() == first_.groups.size();
  const bool divides = size == 0 || (size <= world_size && world_size % size == 0);
  if (divides && (!is_told || counts[group] == wanted)) return;
  raise_contradiction(first_.name,
                      fmt::format("group {} has {} partitions and {} expert ranks; "
                                  "there are {} data-parallel ranks",
                                  group, is_told ? counts[group] : 0, size, world_size));
}

void ExpertGroups::add_group(std::size_t group, const std::vector<NamedShape>& shapes) {
  const std::uint64_t size = sizes_[group];
  for (std::uint64_t e = 0; e < std::max<std::uint64_t>(size, 1); ++e) {
    of_.push_back({group, e, size});
    vectors_.push_back(shapes);
    for (NamedShape& named : vectors_.back()) named.fqn = global_name(named.fqn, of_.back());
    if (!first_.gaps.empty())
      gaps_.push_back(group < first_.gaps.size() ? first_.gaps[group]
                                                 : std::vector<std::uint64_t>());
  }
}

std::string ExpertGroups::global_name(const std::string& local, const Vector& vector) const {
  if (vector.expert_ranks == 0) return local;
  const auto name = split_expert(local);
  const ExpertLayer* layer = name ? experts_.find(name->prefix) : nullptr;
  if (layer == nullptr) {
    raise_contradiction(first_.name,
                        fmt::format("group {} holds experts, and no expert's file has {}",
                                    vector.group, unishard::quote(local)));
  }
  const std::uint64_t held = layer->experts / vector.expert_ranks;
  if (layer->experts % vector.expert_ranks != 0 || name->number >= held) {
    raise_contradiction(first_.name, fmt::format("{} in group {}, but its layer has {} experts on "
                                                 "{} expert ranks",
                                                 unishard::quote(local), vector.group,
                                                 layer->experts, vector.expert_ranks));
  }
  return name->with_number(vector.expert_rank * held + name->number);
}

ShapeGroups ExpertGroups::parameters() const {
  ShapeGroups groups(sizes_.size());
  for (std::size_t v = 0; v < vectors_.size(); ++v) {
    auto& group = groups[of_[v].group];
    group.insert(group.end(), vectors_[v].begin(), vectors_[v].end());
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (sizes_[g] == 0) continue;
    std::map<std::string, std::size_t, std::less<>> layers;  // by first appearance
    for (const NamedShape& named : groups[g])
      layers.emplace(split_expert(named.fqn)->prefix, layers.size());
    std::ranges::stable_sort(groups[g], {}, [&](const NamedShape& named) {
      return layers.find(split_expert(named.fqn)->prefix)->second;
    });
  }
  return groups;
}

OptimizerFile ExpertGroups::in_first_order(OptimizerFile file) const {
  std::map<std::uint64_t, std::vector<std::size_t>> by_size;  // groups of each number of ranks
  const bool has_settings = file.settings.is_array() && file.settings.size() == sizes_.size();
  for (std::size_t g = 0; has_settings && g < sizes_.size(); ++g)
    by_size[expert_ranks_of(file.settings[g], file.name)].push_back(g);
  std::vector<std::size_t> order;
  std::map<std::uint64_t, std::size_t> next;
  for (const std::uint64_t size : sizes_) {
    const auto& same = by_size[size];
    const std::size_t k = next[size]++;
    if (k >= same.size()) raise_two_saves(first_.name, file.name, "their groups of experts differ");
    order.push_back(same[k]);
  }
  file.groups = reordered(file.groups, order);
  file.settings = reordered(file.settings, order);
  file.partition_counts = reordered(file.partition_counts, order);
  file.gaps = reordered(file.gaps, order);
  file.slices = reordered(file.slices, order);
  return file;
}

bool ExpertGroups::has(const Vector& vector, std::uint32_t rank) const {
  return vector.expert_ranks == 0 || ranks_.of(rank, vector.expert_ranks) == vector.expert_rank;
}

OptimizerFile ExpertGroups::by_vector(const OptimizerFile& file, std::uint32_t rank) const {
  OptimizerFile out = file;
  const bool has_slices = file.slices.size() == file.groups.size();
  out.groups.clear();
  out.slices.clear();
  for (const Vector& vector : of_) {
    const bool is_held = has(vector, rank) && vector.group < file.groups.size();
    out.groups.push_back(is_held ? file.groups[vector.group] : FlatGroup());
    if (!is_held) out.groups.back().master = {std::string(state::kFp32), {}, {}};
    if (!is_held) out.groups.back().master.view.shape = {0};
    if (!has_slices) continue;
    out.slices.push_back(is_held ? file.slices[vector.group] : std::vector<FlatSlice>());
    for (FlatSlice& slice : out.slices.back()) {
      if (split_expert(slice.fqn)) slice.fqn = global_name(slice.fqn, vector);
    }
  }
  return out;
}

std::vector<std::optional<std::uint64_t>> ExpertGroups::places(std::uint32_t rank) const {
  std::vector<std::optional<std::uint64_t>> places;
  for (const Vector& vector : of_) {
    if (!has(vector, rank)) {
      places.emplace_back(std::nullopt);
    } else {
      places.emplace_back(vector.expert_ranks == 0 ? rank
                                                   : ranks_.place(rank, vector.expert_ranks));
    }
  }
  return places;
}

}  // namespace unishard::converters::deepspeed
