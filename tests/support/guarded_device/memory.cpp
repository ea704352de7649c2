#include "guarded_device/memory.hpp"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace unishard::test::guarded {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSize = std::size_t{16} << 30;  // addresses; pages come when they are used

std::byte* map(int file, std::size_t size, int protection) {
  const int flags = MAP_NORESERVE | (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  void* const address = mmap(nullptr, size, protection, flags, file, 0);
  TORCH_CHECK(address != MAP_FAILED, "guarded: cannot map memory");
  madvise(address, size, MADV_DONTFORK);  // as a device: a child process cannot use it
  return static_cast<std::byte*>(address);
}

}  // namespace

std::string Block::describe() const {
  return "block #" + std::to_string(id) + " (" + std::to_string(bytes) + " bytes, made by " + born +
         ")";
}

Memory& Memory::instance() {
  static auto* const memory = new Memory;
  return *memory;
}

Memory::Memory() {
  const int file = memfd_create("guarded", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(kSize)) == 0,
              "guarded: cannot make memory");
  seen_ = map(file, kSize, PROT_NONE);
  kernel_ = map(file, kSize, PROT_READ | PROT_WRITE);
  close(file);
  owners_ = reinterpret_cast<std::atomic<Block*>*>(
      map(-1, kSize / kPage * sizeof *owners_, PROT_READ | PROT_WRITE));
}

Block* Memory::allocate(std::size_t bytes, StreamKey home, const std::string& born) {
  const std::lock_guard lock(mutex_);
  const std::size_t capacity = std::bit_ceil(std::max(bytes, kPage));
  auto& list = free_[{home, capacity}];
  if (list.empty()) {
    const std::size_t next = used_ + capacity + kPage;  // a page lies between blocks
    TORCH_CHECK(next <= kSize, "guarded: out of device memory");
    auto* const fresh = new Block{.base = seen_ + used_, .capacity = capacity};
    for (std::size_t page = used_ / kPage; page < next / kPage; ++page) owners_[page] = fresh;
    used_ = next;
    list.push_back(fresh);
  }
  Block* const block = list.back();
  list.pop_back();
  block->id = ++ids_;
  block->bytes = bytes;
  block->home = home;
  block->born = born;
  block->freed = false;
  std::memset(usable(block->base), 0xFF, bytes);
  return block;
}

void Memory::free(Block* block) {
  const std::lock_guard lock(mutex_);
  std::memset(usable(block->base), 0xFF, block->bytes);
  free_[{block->home, block->capacity}].push_back(block);
}

bool Memory::contains(const void* address) const {
  return address >= seen_ && address < seen_ + kSize;
}

const Block* Memory::find(const void* address) const {
  if (!contains(address)) return nullptr;
  return owners_[static_cast<std::size_t>(static_cast<const std::byte*>(address) - seen_) / kPage];
}

Block* Memory::find(const void* address) {
  return const_cast<Block*>(std::as_const(*this).find(address));
}

void* Memory::usable(const void* address) const {
  return kernel_ + (static_cast<const std::byte*>(address) - seen_);
}

}  // namespace unishard::test::guarded
