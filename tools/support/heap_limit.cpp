#include "support/heap_limit.hpp"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>

namespace {

std::atomic<std::uint64_t> limit{~std::uint64_t{0}};
std::atomic<bool> is_exceeded{false};

// The sanitizers have operators of their own, which must not be mixed with these.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
std::atomic<std::uint64_t> used{0};

// Nothing is refused while an exception unwinds: destructors of JSON trees need memory and must not
// throw.
bool takes(std::uint64_t bytes) {
  if (used.load(std::memory_order_relaxed) + bytes <= limit || std::uncaught_exceptions() > 0)
    return true;
  is_exceeded = true;
  return false;
}

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  used.fetch_add(::malloc_usable_size(memory), std::memory_order_relaxed);
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) used.fetch_sub(::malloc_usable_size(memory), std::memory_order_relaxed);
  std::free(memory);
}
#endif

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t bytes) {
  if (!takes(bytes)) throw std::bad_alloc();
  return counted(std::malloc(std::max<std::size_t>(bytes, 1)));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  const std::size_t whole = (bytes + align - 1) / align * align;
  if (whole < bytes || !takes(whole)) throw std::bad_alloc();
  return counted(std::aligned_alloc(align, std::max(whole, align)));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
#endif

namespace unishard::cli {

void set_heap_limit(std::uint64_t bytes) { limit = bytes; }
std::uint64_t exceeded_heap_limit() { return is_exceeded ? limit.load() : 0; }

}  // namespace unishard::cli
