#include "unishard/trainer/offload.hpp"

#include <cstdlib>  // defines __GLIBC__

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace unishard::trainer {

void return_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kLargeBytes = 1 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kLargeBytes);  // also keeps glibc from raising it
  ::mallopt(M_TRIM_THRESHOLD, kLargeBytes);
#endif
}

}  // namespace unishard::trainer
