#include "support/machine.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/memory.hpp"

#include "support/size_text.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

namespace unishard::tools {

unsigned hardware_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<unsigned>(std::max(CPU_COUNT(&set), 1));
}

std::uint64_t mappable_bytes() {
  constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
  const auto limit_of = [](auto resource) {
    rlimit limit{};
    const bool is_set = getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return is_set ? std::uint64_t{limit.rlim_cur} : kUnlimited;
  };
  const std::uint64_t address_space = limit_of(RLIMIT_AS), data_bytes = limit_of(RLIMIT_DATA);
  if (address_space == kUnlimited && data_bytes == kUnlimited) return kUnlimited;

  const MappedBytes used = mapped_bytes();
  const auto left = [](std::uint64_t limit, std::uint64_t taken) {
    return limit == kUnlimited ? kUnlimited : limit - std::min(limit, taken);
  };
  return std::min(left(address_space, used.all), left(data_bytes, used.data));
}

std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    std::uint64_t kibibytes = 0;
    if (name == "MemAvailable:" && file >> kibibytes) return kibibytes << 10;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::numeric_limits<std::uint64_t>::max();
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string hdf5_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

std::uint64_t free_bytes(const Path& path) {
  Path existing = std::filesystem::absolute(path);
  std::error_code code;
  while (!std::filesystem::exists(existing, code) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  const auto space = std::filesystem::space(existing, code);
  if (code) raise_errno("looking at the free space of", existing.native(), code.value());
  return space.available;
}

void require_space(const Path& path, std::uint64_t needed_bytes) {
  const std::uint64_t available = free_bytes(path);
  if (available >= needed_bytes) return;
  raise(ErrorCode::NoSpace,
        fmt::format("{}: {} are needed and {} are free", path.string(), format_bytes(needed_bytes),
                    format_bytes(available)),
        "free space or choose another file system; nothing was written");
}

}  // namespace unishard::tools
