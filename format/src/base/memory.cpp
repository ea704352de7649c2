#include "unishard/format/memory.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

namespace unishard {
namespace {

std::atomic<std::uint64_t> description_bytes{~std::uint64_t{0}};

}  // namespace

std::uint64_t description_limit() { return description_bytes; }
void set_description_limit(std::uint64_t bytes) { description_bytes = bytes; }

MappedBytes mapped_bytes() {
  std::uint64_t all = 0, resident = 0, shared = 0, text = 0, unused = 0, data = 0;  // in pages
  if (!(std::ifstream("/proc/self/statm") >> all >> resident >> shared >> text >> unused >> data))
    return {};
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return {all * page, data * page};
}

void MemoryBudget::refuse(std::uint64_t bytes) const {
  raise(ErrorCode::MemoryLimit,
        fmt::format(
            "{}: describing its content takes more than {} bytes of memory ({} are in use, {} "
            "more are needed)",
            what_, limit_bytes_, used_bytes_, bytes),
        "a small file that needs this much is damaged or hostile; if it is as large as it should "
        "be, allow more with --memory-limit");
}

}  // namespace unishard
