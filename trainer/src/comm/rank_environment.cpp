#include "unishard/trainer/rank_environment.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include <charconv>
#include <limits>
#include <string_view>

namespace unishard::trainer {
namespace {

std::uint32_t parse_number(const std::string& name, const std::string& text, std::uint32_t limit) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value > limit) {
    raise(ErrorCode::InvalidArgument, "environment: " + name + " is " + quote(text) +
                                          ", not a whole number up to " + std::to_string(limit));
  }
  return value;
}

/// Names of one launcher's variables; empty where it has none.
struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* job;  ///< with `step`: what tells this launch from others on the same hosts
  const char* step;
  const char* master_hint;
};

constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "", "",
     "export MASTER_ADDR=<host of rank 0> and MASTER_PORT"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "PMIX_NAMESPACE", "", "with several hosts: mpirun -x MASTER_ADDR=<host of rank 0> ..."},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID",
     "SLURM_STEP_ID", "export MASTER_ADDR=<host of rank 0>"},
};

/// The first host of "node[003-008],other": "node003". Empty when there is none.
std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of(",-]", bracket + 1);
  if (end == std::string::npos) return {};
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

class Reader {
 public:
  explicit Reader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::optional<std::uint32_t> number(const std::string& name, std::uint32_t limit) const {
    const auto text = lookup_(name);
    if (!text) return std::nullopt;
    return parse_number(name, *text, limit);
  }
  std::optional<std::string> text(const std::string& name) const { return lookup_(name); }

 private:
  const EnvironmentLookup& lookup_;
};

[[noreturn]] void missing(const std::string& name, const Launcher& launcher) {
  raise(ErrorCode::InvalidArgument,
        "environment: " + name + " is not set, though " + launcher.name + "'s other variables are",
        "start the ranks with torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR, "
        "MASTER_PORT");
}

/// Where the launcher's own variables say that rank 0 is; empty when they do not.
std::string address_from(const Reader& reader, std::string_view launcher) {
  const std::string loopback = "127.0.0.1";
  if (launcher == "openmpi") {
    const bool one_host =
        reader.text("OMPI_COMM_WORLD_LOCAL_SIZE") == reader.text("OMPI_COMM_WORLD_SIZE");
    return one_host ? loopback : "";
  }
  if (launcher != "srun") return {};
  if (reader.text("SLURM_STEP_NUM_NODES") == "1") return loopback;
  const auto step_nodes = reader.text("SLURM_STEP_NODELIST");
  return first_host(step_nodes ? *step_nodes : reader.text("SLURM_NODELIST").value_or(""));
}

std::string master_address(const Reader& reader, const Launcher& launcher) {
  if (auto address = reader.text("MASTER_ADDR"); address && !address->empty()) return *address;
  std::string address = address_from(reader, launcher.name);
  if (!address.empty()) return address;
  raise(ErrorCode::InvalidArgument,
        std::string("environment: MASTER_ADDR is not set (launcher ") + launcher.name + ")",
        launcher.master_hint);
}

/// Empty when the launcher does not number its jobs.
std::string job_of(const Reader& reader, const Launcher& launcher) {
  std::string job = reader.text(launcher.job).value_or("");
  if (const auto step = reader.text(launcher.step)) job += "." + *step;
  return job;
}

/// Jobs on one host should not meet at one port: outside of the range that systems hand out.
std::uint16_t default_port(const std::string& job) {
  constexpr std::uint16_t kUsual = 29500, kFirst = 15000, kCount = 10000;
  return job.empty() ? kUsual : static_cast<std::uint16_t>(kFirst + crc64(job) % kCount);
}

}  // namespace

RankEnvironment read_rank_environment(const EnvironmentLookup& lookup) {
  constexpr auto kLimit = std::uint32_t{1} << 20;
  const Reader reader(lookup);
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = reader.number(launcher.rank, kLimit);
    const auto world_size = reader.number(launcher.world_size, kLimit);
    if (!rank && !world_size) continue;
    // The shell of a batch job has a SLURM_PROCID too, but is no rank: it is in no step.
    if (!world_size && std::string(launcher.name) == "srun") continue;
    if (!rank) missing(launcher.rank, launcher);
    if (!world_size) missing(launcher.world_size, launcher);
    if (*rank >= *world_size) {
      raise(ErrorCode::InvalidArgument, std::string("environment: ") + launcher.rank + " is " +
                                            std::to_string(*rank) + ", but " + launcher.world_size +
                                            " is " + std::to_string(*world_size));
    }
    RankEnvironment found;
    found.rank = *rank;
    found.world_size = *world_size;
    found.local_rank = reader.number(launcher.local_rank, kLimit).value_or(0);
    found.launcher = launcher.name;
    found.store_is_hosted = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    const std::string job = job_of(reader, launcher);
    found.group = "unishard/" + job + (job.empty() ? "" : "/") +
                  reader.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
    if (found.world_size > 1) found.master_addr = master_address(reader, launcher);
    constexpr std::uint32_t kLargestPort = std::numeric_limits<std::uint16_t>::max();
    found.master_port = static_cast<std::uint16_t>(
        reader.number("MASTER_PORT", kLargestPort).value_or(default_port(job)));
    return found;
  }
  return {};
}

}  // namespace unishard::trainer
