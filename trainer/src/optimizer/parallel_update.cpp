#include "optimizer/parallel_update.hpp"

#include "optimizer/host_update.hpp"

#include <ATen/Parallel.h>

namespace unishard::trainer::detail {
namespace {

/// Elements below which waking a thread takes longer than the update.
constexpr std::int64_t kGrain = 32768;

}  // namespace

void update_in_parallel(const Rule& rule, const UpdateArrays& arrays) {
  at::parallel_for(0, static_cast<std::int64_t>(arrays.count), kGrain,
                   [&](std::int64_t begin, std::int64_t end) {
                     update_on_host(rule, arrays.part(static_cast<std::size_t>(begin),
                                                      static_cast<std::size_t>(end - begin)));
                   });
}

}  // namespace unishard::trainer::detail
