#pragma once
// Plans the same state for another world size or stage. `reshard` prints the plan or carries it
// out.
#include "unishard/format/checkpoint_reader.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct ReshardTarget {
  std::uint32_t world_size = 1;
  std::optional<std::uint32_t> stage;  ///< nullopt keeps the source's stage
};

struct ReshardPlan {
  struct Shard {
    std::uint32_t rank = 0;
    std::uint64_t payload_bytes = 0;
    /// Ranks of the source that hold its elements, ascending.
    std::vector<std::uint32_t> source_shards;
  };
  Catalog target;  ///< the source's catalog with its digests, the new world size and the new stage
  std::vector<Shard> shards;
  std::uint64_t payload_bytes = 0;
  std::uint64_t disk_bytes = 0;  ///< upper estimate, including tables and padding
};

/// Plans from tables only.
/// Throws: InvalidArgument for a world size or stage out of range.
ReshardPlan plan_reshard(const CheckpointReader& source, const ReshardTarget& target);

}  // namespace unishard::tools
