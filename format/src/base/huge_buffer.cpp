#include "unishard/format/huge_buffer.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace unishard {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

HugeBuffer::HugeBuffer(std::size_t bytes) : size_(bytes) {
  const std::size_t align = bytes >= kHugePage ? kHugePage : kPage;
  const std::size_t rounded = (bytes + align - 1) / align * align;
  if (rounded < bytes) throw std::bad_alloc();
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(align, rounded == 0 ? align : rounded)));
  if (!memory_) throw std::bad_alloc();
  if (align == kHugePage)
    ::madvise(memory_.get(), rounded, MADV_HUGEPAGE);  // advisory: failure is harmless
}

void HugeBuffer::Free::operator()(std::byte* memory) const { std::free(memory); }

}  // namespace unishard
