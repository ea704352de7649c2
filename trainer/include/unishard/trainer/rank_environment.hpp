#pragma once
// Which rank this process is and where the ranks meet, from what a launcher left in the
// environment.
#include "unishard/format/launch_environment.hpp"

#include <cstdint>
#include <string>

namespace unishard::trainer {

struct RankEnvironment {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t local_rank = 0;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 29500;
  /// The launcher already serves the store at master_addr:master_port, so rank 0 must not.
  bool store_is_hosted = false;
  /// Separates the keys of restarts and of groups that share one store.
  std::string group = "unishard/0";
  std::string launcher = "none";  ///< "torchrun", "openmpi", "srun" or "none"; for messages
};

/// Adds to read_launch_environment() where the ranks meet. MASTER_ADDR and MASTER_PORT come before
/// what follows from the launcher's variables: the loopback address when all ranks share one host,
/// srun's first host, a port made of the job's number.
/// Throws: InvalidArgument naming the variable that is missing or not a number.
RankEnvironment read_rank_environment(const EnvironmentLookup& lookup);

}  // namespace unishard::trainer
