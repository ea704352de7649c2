#include "unishard/format/launch_environment.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace unishard {
namespace {

/// Names of one launcher's variables; empty where it has none.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;
  const char* job;
  const char* step;
};

constexpr Variables kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "", ""},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", ""},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_JOB_ID",
     "SLURM_STEP_ID"},
};

std::string job_of(const EnvironmentLookup& lookup, const Variables& variables) {
  std::string job = lookup(variables.job).value_or("");
  if (const auto step = lookup(variables.step)) job += "." + *step;
  return job;
}

bool is_one_host(const EnvironmentLookup& lookup, const Variables& variables,
                 std::uint32_t world_size) {
  return lookup(variables.local_size) == std::to_string(world_size) ||
         lookup("SLURM_STEP_NUM_NODES") == "1";
}

/// Returns the number of this host among those of the job, from torchrun, DeepSpeed's launcher or
/// srun. Other launchers that set LOCAL_WORLD_SIZE number the ranks of a host consecutively.
std::string node_of(const EnvironmentLookup& lookup, const LaunchEnvironment& found) {
  for (const char* name : {"GROUP_RANK", "CROSS_RANK", "SLURM_NODEID"})
    if (const auto number = lookup(name); number && !number->empty()) return *number;
  if (found.one_host || found.launcher != "torchrun" || !lookup("LOCAL_WORLD_SIZE")) return {};
  return fmt::format("of rank {}", found.rank - std::min(found.rank, found.local_rank));
}

void require_rank_and_size(const Variables& variables, const std::optional<std::uint32_t>& rank,
                           const std::optional<std::uint32_t>& size, std::string_view hint) {
  if (!rank || !size) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("environment: {} is not set, though {} is",
                      rank ? variables.world_size : variables.rank,
                      rank ? variables.rank : variables.world_size),
          std::string(hint));
  }
  if (*rank >= *size) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("environment: {} is {}, but {} is {}", variables.rank, *rank,
                      variables.world_size, *size),
          std::string(hint));
  }
}

}  // namespace

std::optional<std::uint32_t> environment_number(const EnvironmentLookup& lookup,
                                                const std::string& name, std::uint32_t most,
                                                std::string_view hint) {
  const std::optional<std::string> text = lookup(name);
  if (!text) return std::nullopt;
  std::uint32_t value = 0;
  const char* const end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || at != end || value > most) {
    raise(
        ErrorCode::InvalidArgument,
        fmt::format("environment: {} is {}, not a whole number up to {}", name, quote(*text), most),
        std::string(hint));
  }
  return value;
}

LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup, std::string_view hint) {
  for (const Variables& variables : kLaunchers) {
    const auto number = [&](const char* name) {
      return environment_number(lookup, name, limits::kWorldSize, hint);
    };
    const auto rank = number(variables.rank), size = number(variables.world_size);
    if (!rank && !size) continue;
    // The shell of a batch job has SLURM_PROCID too, but is in no step.
    if (!size && variables.launcher == std::string_view("srun")) continue;
    require_rank_and_size(variables, rank, size, hint);
    LaunchEnvironment found{.launcher = variables.launcher,
                            .rank = *rank,
                            .world_size = *size,
                            .local_rank = number(variables.local_rank).value_or(0)};
    found.one_host = is_one_host(lookup, variables, *size);
    found.node = node_of(lookup, found);
    found.job = job_of(lookup, variables);
    for (const char* name : {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"})
      found.rendezvous += lookup(name).value_or("") + "/";
    found.restart = lookup("TORCHELASTIC_RESTART_COUNT").value_or("0");
    return found;
  }
  return {};
}

}  // namespace unishard
