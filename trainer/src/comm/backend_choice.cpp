#include "comm/backend_choice.hpp"

#include "unishard/format/error.hpp"

#include "comm/roll_call.hpp"

#include <fmt/format.h>

namespace unishard::trainer::detail {
namespace {

/// How many ranks asked for what. The store counts them.
struct Votes {
  std::int64_t gloo = 0, nccl = 0, without_device = 0;
};

Votes add(c10d::Store& store, const Votes& votes) {
  return {.gloo = store.add("backend/gloo", votes.gloo),
          .nccl = store.add("backend/nccl", votes.nccl),
          .without_device = store.add("backend/without_device", votes.without_device)};
}

}  // namespace

Backend choose_backend(c10d::Store& store, std::uint32_t rank, std::uint32_t world_size,
                       Backend wanted, bool has_device) {
  add(store, {.gloo = wanted == Backend::Gloo,
              .nccl = wanted == Backend::Nccl,
              .without_device = wanted != Backend::Gloo && !has_device});
  call_roll(store, rank, world_size);
  const Votes votes = add(store, {});
  if (votes.nccl > 0 && (votes.gloo > 0 || votes.without_device > 0))
    let_all_know(store, world_size);
  if (votes.nccl > 0 && votes.gloo > 0) {
    raise(ErrorCode::Mismatch,
          fmt::format("{} ranks were started with the backend nccl and {} with gloo", votes.nccl,
                      votes.gloo),
          "start all ranks with the same --backend");
  }
  if (votes.nccl > 0 && votes.without_device > 0) {
    raise(ErrorCode::Unsupported,
          fmt::format("the backend nccl needs a CUDA device and NCCL on every rank, and {} of {} "
                      "ranks have none",
                      votes.without_device, world_size),
          "use gloo or auto");
  }
  const bool all_can = votes.gloo == 0 && votes.without_device == 0;
  return votes.nccl > 0 || all_can ? Backend::Nccl : Backend::Gloo;
}

}  // namespace unishard::trainer::detail
