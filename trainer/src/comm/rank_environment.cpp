#include "unishard/trainer/rank_environment.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include <limits>

namespace unishard::trainer {
namespace {

constexpr const char* kVariablesHint =
    "start the ranks with torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR, "
    "MASTER_PORT";

/// The first host of "node[003-008],other": "node003". Empty when there is none.
std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of(",-]", bracket + 1);
  if (end == std::string::npos) return {};
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

/// Returns the host of rank 0 by the launcher's own variables; empty when they do not name it.
std::string address_of_rank_0(const EnvironmentLookup& lookup, const LaunchEnvironment& launch) {
  if (launch.launcher == "torchrun") return {};  // it always sets MASTER_ADDR
  if (launch.one_host) return "127.0.0.1";
  if (launch.launcher != "srun") return {};
  const auto step_nodes = lookup("SLURM_STEP_NODELIST");
  return first_host(step_nodes ? *step_nodes : lookup("SLURM_NODELIST").value_or(""));
}

std::string master_address(const EnvironmentLookup& lookup, const LaunchEnvironment& launch) {
  if (auto address = lookup("MASTER_ADDR"); address && !address->empty()) return *address;
  std::string address = address_of_rank_0(lookup, launch);
  if (!address.empty()) return address;
  raise(ErrorCode::InvalidArgument,
        "environment: MASTER_ADDR is not set (launcher " + launch.launcher + ")",
        launch.launcher == "openmpi"
            ? "with several hosts: mpirun -x MASTER_ADDR=<host of rank 0> ..."
            : "export MASTER_ADDR=<host of rank 0> and MASTER_PORT");
}

/// Jobs on one host should not meet at one port: outside of the range that systems hand out.
std::uint16_t default_port(const std::string& job) {
  constexpr std::uint16_t kUsual = 29500, kFirst = 15000, kCount = 10000;
  return job.empty() ? kUsual : static_cast<std::uint16_t>(kFirst + crc64(job) % kCount);
}

}  // namespace

RankEnvironment read_rank_environment(const EnvironmentLookup& lookup) {
  const LaunchEnvironment launch = read_launch_environment(lookup, kVariablesHint);
  RankEnvironment found;
  found.launcher = launch.launcher;
  if (launch.launcher == "none") return found;
  found.rank = launch.rank;
  found.world_size = launch.world_size;
  found.local_rank = launch.local_rank;
  found.node = launch.node;
  found.store_is_hosted = lookup("TORCHELASTIC_USE_AGENT_STORE") == "True";
  found.group = "unishard/" + launch.job + (launch.job.empty() ? "" : "/") + launch.restart;
  if (found.world_size > 1) found.master_addr = master_address(lookup, launch);
  constexpr std::uint32_t kLargestPort = std::numeric_limits<std::uint16_t>::max();
  const auto port = environment_number(lookup, "MASTER_PORT", kLargestPort, kVariablesHint);
  if (port == 0u && found.world_size > 1) {
    raise(ErrorCode::InvalidArgument, "environment: MASTER_PORT is 0, a port that no rank can find",
          "set MASTER_PORT to a free port, the same for all ranks");
  }
  found.master_port = static_cast<std::uint16_t>(port.value_or(default_port(launch.job)));
  return found;
}

}  // namespace unishard::trainer
