#pragma once
// A few threads for saves and loads. They are not LibTorch's pool, which has as many threads as the
// user assigned to one rank's arithmetic, often one.
#include "unishard/format/bounded_executor.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <thread>

namespace unishard::trainer::detail {

/// Calls work(index) for every index below `count` from `threads` threads. The default is the
/// number that copies memory fastest.
/// Throws: the exception of the call that failed first, after all threads have stopped.
inline void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work,
                        unsigned threads = std::clamp(std::thread::hardware_concurrency(), 2u,
                                                      4u)) {
  run_bounded(count, {.threads = threads, .buffer_bytes = 0},
              [&](std::size_t index, std::span<std::byte>) -> std::uint64_t {
                work(index);
                return 0;
              });
}

}  // namespace unishard::trainer::detail
