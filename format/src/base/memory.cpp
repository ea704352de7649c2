#include "unishard/format/memory.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <atomic>

namespace unishard {
namespace {

std::atomic<std::uint64_t> limit{~std::uint64_t{0}};

}  // namespace

std::uint64_t description_limit() { return limit; }
void set_description_limit(std::uint64_t bytes) { limit = bytes; }

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
