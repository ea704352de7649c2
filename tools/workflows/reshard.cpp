#include "workflows/reshard.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/version.hpp"

#include "workflows/conversion_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace unishard::tools {
namespace {

/// Bytes of a shard beside its payload: container, padding of data sets, one row per fragment and
/// per chunk.
constexpr std::uint64_t kShardOverheadBytes = 64 << 10;
constexpr std::uint64_t kFragmentOverheadBytes = 512;

void add_source_shards(const CheckpointReader& source, const Fragment& fragment,
                       std::set<std::uint32_t>& shards) {
  for (const auto& stored : source.fragments(fragment.tensor, fragment.range)) {
    const ShardReader& shard = *source.shards()[stored.shard];
    if (!shard.map_of(stored.row).own_in(fragment.range).empty()) shards.insert(shard.entry().rank);
  }
}

}  // namespace

ReshardPlan plan_reshard(const CheckpointReader& source, const ReshardTarget& target) {
  require_placement(target.world_size, target.stage);
  ReshardPlan plan;
  plan.target = source.catalog();
  Json origin = {{"version", kLibraryVersion},
                 {"world_size", plan.target.world_size},
                 {"stage", plan.target.stage}};
  if (plan.target.producer.is_null()) plan.target.producer = Json::object();
  if (plan.target.producer.is_object()) plan.target.producer["resharded_from"] = std::move(origin);
  plan.target.world_size = target.world_size;
  plan.target.stage = target.stage.value_or(plan.target.stage);
  const ShardPlans plans(plan.target);
  for (std::uint32_t rank = 0; rank < target.world_size; ++rank) {
    ReshardPlan::Shard shard{.rank = rank, .payload_bytes = 0, .source_shards = {}};
    std::set<std::uint32_t> touched;
    const std::vector<Fragment> fragments = plans.shard(rank);
    for (const Fragment& fragment : fragments) {
      const TensorInfo& tensor = plan.target.tensors[fragment.tensor];
      if (!tensor.derived) shard.payload_bytes += fragment.range.size() * size_of(tensor.dtype);
      add_source_shards(source, fragment, touched);
    }
    shard.source_shards.assign(touched.begin(), touched.end());
    plan.payload_bytes += shard.payload_bytes;
    plan.disk_bytes += shard.payload_bytes + shard.payload_bytes / 4096 + kShardOverheadBytes +
                       fragments.size() * kFragmentOverheadBytes;
    plan.shards.push_back(std::move(shard));
  }
  return plan;
}

}  // namespace unishard::tools
