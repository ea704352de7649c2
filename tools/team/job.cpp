#include "team/job.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <initializer_list>

namespace unishard::tools {
namespace {

constexpr std::uint32_t kMostProcesses = 1u << 16;
constexpr const char* kAlone = "pass --procs 1 if this process is not meant to be one of several";

/// Names of one launcher's variables.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
  std::array<const char*, 4> id;  ///< together they tell one launch from another
};

constexpr std::array<Variables, 3> kLaunchers = {{
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE", "", "", ""}},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", {"SLURM_JOB_ID", "SLURM_STEP_ID", "", ""}},
}};

std::optional<std::uint32_t> number(const EnvironmentLookup& lookup, const char* name) {
  const std::optional<std::string> text = lookup(name);
  if (!text) return std::nullopt;
  std::uint32_t value = 0;
  const char* end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || at != end || value > kMostProcesses) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("environment: {} is {}, not a whole number up to {}", name, quote(*text),
                      kMostProcesses),
          kAlone);
  }
  return value;
}

bool is_on_one_host(const EnvironmentLookup& lookup, std::uint32_t size) {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    if (lookup(name) == std::to_string(size)) return true;
  }
  return lookup("SLURM_STEP_NUM_NODES") == "1";
}

}  // namespace

Job read_job(const EnvironmentLookup& lookup) {
  for (const Variables& variables : kLaunchers) {
    const auto rank = number(lookup, variables.rank);
    const auto size = number(lookup, variables.size);
    // The shell of a batch job has a SLURM_PROCID too, but is in no step.
    if (!size && (!rank || std::string_view(variables.launcher) == "srun")) continue;
    if (!rank || !size || *rank >= *size) {
      const auto text = [](const auto& value) {
        return value ? std::to_string(*value) : "not set";
      };
      raise(ErrorCode::InvalidArgument,
            fmt::format("environment: {} is {}, and {} is {}", variables.rank, text(rank),
                        variables.size, text(size)),
            kAlone);
    }
    Job job{.rank = *rank, .size = *size, .launcher = variables.launcher, .id = {}};
    for (const char* name : variables.id) job.id += lookup(name).value_or("") + "/";
    job.one_host = is_on_one_host(lookup, *size);
    return job;
  }
  return {};
}

}  // namespace unishard::tools
