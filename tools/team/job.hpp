#pragma once
// Which process of a job this one is, as torchrun, OpenMPI and srun tell it.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace unishard::tools {

/// The value of an environment variable; nullopt when it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

struct Job {
  std::uint32_t rank = 0, size = 1;
  std::string launcher;   ///< "torchrun", "mpirun", "srun"; empty when there is none
  std::string id;         ///< what tells this launch from others, as far as the launcher says
  bool one_host = false;  ///< all processes are known to be on this machine
};

/// Without a launcher: alone. Throws InvalidArgument naming the variable that is no number, or is
/// missing beside others.
Job read_job(const EnvironmentLookup& lookup);

}  // namespace unishard::tools
