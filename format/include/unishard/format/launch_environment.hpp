#pragma once
// Which process of a job this one is, from the variables that torchrun and look-alikes, Open MPI
// and Slurm's srun set. A pure function of a look-up, so that nothing below main() reads the
// environment.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace unishard {

/// Returns the value of an environment variable; nullopt when it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

struct LaunchEnvironment {
  std::string launcher = "none";  ///< "torchrun", "openmpi", "srun" or "none"
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t local_rank = 0;  ///< rank among the processes of this host
  bool one_host = false;         ///< all processes are known to be on this host
  std::string job = {};          ///< the launcher's number of the job and step; torchrun has none
  std::string rendezvous = {};   ///< torchrun's run id, address and port
  std::string restart = "0";     ///< how often torchrun has restarted the processes

  /// Text that tells this launch from others, as far as the launcher tells them apart.
  std::string id() const { return job + "/" + rendezvous + "/" + restart; }
};

/// Returns what the first launcher whose variables are set says; a world of one process where there
/// is none. The shell of a Slurm batch job is no launcher, though it has SLURM_PROCID.
/// Throws: InvalidArgument naming the variable that is missing beside others or is no number, with
/// `hint`.
LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup, std::string_view hint);

/// Reads a whole number; nullopt when the variable is not set.
/// Throws: InvalidArgument naming the variable, with `hint`, for anything else and above `most`.
std::optional<std::uint32_t> environment_number(const EnvironmentLookup& lookup,
                                                const std::string& name, std::uint32_t most,
                                                std::string_view hint);

}  // namespace unishard
