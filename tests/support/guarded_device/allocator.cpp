#include "guarded_device/allocator.hpp"

#include "guarded_device/streams.hpp"

#include <torch/version.h>
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
#define UNISHARD_TEST_COUNTED_MEMORY 1
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>

namespace unishard::test::guarded {
namespace {

// Of all devices together.
std::atomic<std::int64_t> allocated_bytes = 0;
std::atomic<std::int64_t> peak_bytes = 0;

void count_allocation(std::size_t bytes) {
  const std::int64_t now = allocated_bytes += static_cast<std::int64_t>(bytes);
  std::int64_t peak = peak_bytes;
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
}

void release(void* context) {
  auto* const block = static_cast<Block*>(context);
  allocated_bytes -= static_cast<std::int64_t>(block->bytes);
  block->freed = true;
  when_done(end_life(block), [block] { Memory::instance().free(block); });
}

#ifdef UNISHARD_TEST_COUNTED_MEMORY
struct CountingAllocator : c10::DeviceAllocator {
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* const each : {&stats.allocated_bytes, &stats.reserved_bytes}) {
      each->front().current = allocated_bytes;
      each->front().peak = peak_bytes;
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override { peak_bytes = allocated_bytes.load(); }
};
#else
using CountingAllocator = c10::Allocator;
#endif

struct Allocator final : CountingAllocator {
#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t bytes) override {
    return guarded::allocate(bytes, "the allocator");
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    Memory& memory = Memory::instance();
    begin_work(current_stream(current_device()), "copy_data",
               {{memory.find(to), true},
                { memory.find(from),
                  false }});
    std::memcpy(memory.usable(to), memory.usable(from), bytes);
  }
#else
  c10::DataPtr allocate(std::size_t bytes) const override {
    return guarded::allocate(bytes, "the allocator");
  }
#endif
};

}  // namespace

std::int64_t bytes_in_tensors() { return allocated_bytes; }

c10::Allocator* allocator() {
  static auto* const only = new Allocator;
  return only;
}

c10::DataPtr allocate(std::size_t bytes, const char* born) {
  const c10::Device here(kDeviceType, current_device());
  if (bytes == 0) return {nullptr, here};
  Block* const block = Memory::instance().allocate(bytes, current_stream(here.index()), born);
  count_allocation(block->bytes);
  begin_life(block);
  return {block->base, block, &release, here};
}

}  // namespace unishard::test::guarded
