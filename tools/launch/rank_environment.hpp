#pragma once
// The environment variables that tell a rank its place, as torchrun and DeepSpeed set them.
#include "launch/environment_file.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::tools {

struct RankPlace {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 1;
  std::string master_addr;
  std::uint16_t master_port = 0;
};

/// Returns this process's environment as "NAME=value" texts, with `variables` and then RANK,
/// LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT replaced, and with
/// OMP_NUM_THREADS=1 unless it is set.
std::vector<std::string> rank_environment(const RankPlace& place, const Variables& variables = {});

}  // namespace unishard::tools
