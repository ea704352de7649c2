#include "unishard/format/staging_names.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace unishard {

std::string new_save_id() {
  std::array<std::uint64_t, 2> random{};
  if (::syscall(SYS_getrandom, random.data(), sizeof(random), 0) != sizeof(random))
    raise_errno("reading", "the system's random source", errno);
  return fmt::format("{:016x}{:016x}", random[0], random[1]);
}

}  // namespace unishard
