#pragma once
// The same state for another world size or stage. The plan is a value; `reshard` prints or carries
// it out.
#include "unishard/format/checkpoint_reader.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct ReshardTarget {
  std::uint32_t world_size = 1;
  std::optional<std::uint32_t> stage;  ///< nullopt keeps the source's
};

struct ReshardPlan {
  struct Shard {
    std::uint32_t rank = 0;
    std::uint64_t payload_bytes = 0;
    std::vector<std::uint32_t>
        source_shards;  ///< ranks of the source that hold its elements, ascending
  };
  Catalog target;  ///< the source's, digests included, with the new world size and stage
  std::vector<Shard> shards;
  std::uint64_t payload_bytes = 0;
  std::uint64_t disk_bytes = 0;  ///< upper estimate with tables and padding
};

/// Reads tables only. Throws InvalidArgument for a world size or stage out of range.
ReshardPlan plan_reshard(const CheckpointReader& source, const ReshardTarget& target);

}  // namespace unishard::tools
