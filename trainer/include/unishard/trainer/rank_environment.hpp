#pragma once
// This process's rank and the place where the ranks meet, from the variables that a launcher set.
#include "unishard/format/launch_environment.hpp"

#include <cstdint>
#include <string>

namespace unishard::trainer {

/// Thread safety: a value.
struct RankEnvironment {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t local_rank = 0;
  /// What the launcher calls this rank's node, different for each; empty where it does not tell.
  std::string node = {};
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 29500;
  /// The launcher serves the store at master_addr:master_port, so rank 0 must not.
  bool store_is_hosted = false;
  /// Separates the keys of restarts and of groups that share one store.
  std::string group = "unishard/0";
  std::string launcher = "none";  ///< "torchrun", "openmpi", "srun" or "none"; for messages
};

/// Returns read_launch_environment() with the address and port at which the ranks meet. MASTER_ADDR
/// and MASTER_PORT take precedence over values derived from the launcher's variables: the loopback
/// address when all ranks share one host, srun's first host, a port derived from the job's number.
/// Throws: InvalidArgument, naming a variable that is missing or not a number.
RankEnvironment read_rank_environment(const EnvironmentLookup& lookup);

}  // namespace unishard::trainer
