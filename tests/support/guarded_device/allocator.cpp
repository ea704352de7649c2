#include "guarded_device/allocator.hpp"

#include "guarded_device/streams.hpp"

#include <torch/version.h>

#include <cstring>

namespace unishard::test::guarded {
namespace {

void release(void* context) {
  auto* const block = static_cast<Block*>(context);
  block->freed = true;
  when_done(end_life(block), [block] { Memory::instance().free(block); });
}

struct Allocator final : c10::Allocator {
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

c10::Allocator* allocator() {
  static auto* const only = new Allocator;
  return only;
}

c10::DataPtr allocate(std::size_t bytes, const char* born) {
  const c10::Device here(kDeviceType, current_device());
  if (bytes == 0) return {nullptr, here};
  Block* const block = Memory::instance().allocate(bytes, current_stream(here.index()), born);
  begin_life(block);
  return {block->base, block, &release, here};
}

}  // namespace unishard::test::guarded
