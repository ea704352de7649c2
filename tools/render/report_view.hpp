#pragma once
// Reports of verify, diff and reshard as text or JSON. Pure. The JSON schemas are in
// tools/README.md.
#include "unishard/format/json.hpp"

#include "lib/diff.hpp"
#include "lib/reshard.hpp"
#include "lib/verify.hpp"

#include <string>

namespace unishard::cli {

std::string verify_text(const tools::VerifyReport& report);
Json verify_json(const tools::VerifyReport& report);

std::string diff_text(const tools::DiffReport& report);
Json diff_json(const tools::DiffReport& report);

struct ReshardSurroundings {
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint32_t source_shards = 0;
};
std::string reshard_text(const tools::ReshardPlan& plan, const ReshardSurroundings& around);
Json reshard_json(const tools::ReshardPlan& plan, const ReshardSurroundings& around);

}  // namespace unishard::cli
