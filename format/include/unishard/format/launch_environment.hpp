#pragma once
// Identifies this process among the processes of its job, from the variables that torchrun and
// compatible launchers, Open MPI and Slurm's srun set. The environment is passed in as a look-up
// function: only main() reads the process's environment.
// Thread safety: values and pure functions.
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
  std::string node = {};         ///< what the launcher calls this host; empty: it does not tell
  std::string job = {};          ///< the launcher's number of the job and step; empty for torchrun
  std::string rendezvous = {};   ///< torchrun's run id, address and port
  /// Number of times that torchrun has restarted the processes.
  std::string restart = "0";

  /// Returns a text that distinguishes this launch from others, as far as the launcher does.
  std::string id() const { return job + "/" + rendezvous + "/" + restart; }
};

/// Returns the environment of the first launcher whose variables are set; a world of one process
/// when there is none. The shell of a Slurm batch job counts as no launcher, although it has
/// SLURM_PROCID. `hint` is the hint of errors.
/// Throws: InvalidArgument, naming a variable that is not a number, or is missing although others
/// are set.
LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup, std::string_view hint);

/// Reads a whole number of at most `most`; nullopt when the variable is not set. `hint` is the hint
/// of errors.
/// Throws: InvalidArgument, naming the variable, for anything else.
std::optional<std::uint32_t> environment_number(const EnvironmentLookup& lookup,
                                                const std::string& name, std::uint32_t most,
                                                std::string_view hint);

}  // namespace unishard
