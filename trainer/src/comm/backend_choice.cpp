#include "comm/backend_choice.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

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

/// Returns how many ranks have not voted, as a text.
std::string missing(c10d::Store& store, std::uint32_t world_size) {
  try {
    return fmt::format("{} of {} ranks", world_size - store.add("backend/voted", 0), world_size);
  } catch (const std::exception&) {  // the rank that serves the store is one of them
    return "the first rank";
  }
}

/// Blocks until every rank has voted.
/// Throws: PeerFailed after the store's timeout.
Votes all_votes(c10d::Store& store, std::uint32_t world_size, Backend wanted, bool has_device) {
  add(store, {.gloo = wanted == Backend::Gloo,
              .nccl = wanted == Backend::Nccl,
              .without_device = wanted != Backend::Gloo && !has_device});
  if (store.add("backend/voted", 1) == world_size)
    store.set("backend/complete", std::vector<std::uint8_t>{1});
  try {
    store.get("backend/complete");
    return add(store, {});
  } catch (const std::exception& failure) {
    raise(ErrorCode::PeerFailed,
          fmt::format("starting the ranks: {} did not answer in time ({})",
                      missing(store, world_size), failure.what()),
          "a rank ended, hangs or is unreachable: read its message, then restart all ranks");
  }
}

/// Waits until every rank knows the votes, since one of them serves the store and is about to end.
void let_all_know(c10d::Store& store, std::uint32_t world_size) noexcept {
  constexpr std::chrono::milliseconds kPatience{3000}, kPause{10};
  try {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (std::int64_t known = store.add("backend/known", 1);
         known < world_size && std::chrono::steady_clock::now() < end;
         known = store.add("backend/known", 0)) {
      std::this_thread::sleep_for(kPause);
    }
  } catch (const std::exception&) {  // the store is gone: all of them know
  }
}

}  // namespace

Backend choose_backend(c10d::Store& store, std::uint32_t world_size, Backend wanted,
                       bool has_device) {
  const Votes votes = all_votes(store, world_size, wanted, has_device);
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
