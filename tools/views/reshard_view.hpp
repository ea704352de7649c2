#pragma once
// The plan of `unishard reshard` as text or JSON. Pure. tools/README.md has the JSON schema.
#include "unishard/format/json.hpp"

#include "workflows/reshard.hpp"

#include <string>

namespace unishard::cli {

struct ReshardSurroundings {
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint32_t source_shards = 0;
};

std::string reshard_text(const tools::ReshardPlan& plan, const ReshardSurroundings& around);
Json reshard_json(const tools::ReshardPlan& plan, const ReshardSurroundings& around);

}  // namespace unishard::cli
