#pragma once
// The plan and the result of `unishard reshard` as text and JSON. tools/README.md has the JSON
// schemas.
// Thread safety: pure functions.
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

struct Resharded {
  Path input, output;  ///< folders of one checkpoint
  std::string identity_in, identity_out;
  bool is_equal = false;
  std::uint32_t world_size = 0, stage = 0;
  std::uint64_t payload_bytes = 0;  ///< of all shards
};

std::string resharded_text(const Resharded& done);
Json resharded_json(const Resharded& done);

}  // namespace unishard::cli
