#include "comm/roll_call.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace unishard::trainer::detail {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr const char *kWorldSize = "roll/world_size", *kAnswered = "roll/answered",
                     *kResult = "roll/result";
constexpr const char* kComplete = "complete";

Bytes encoded(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

std::string roll_key(std::uint32_t rank) { return fmt::format("roll/rank/{}", rank); }

/// Returns what is wrong about this process beside those that came before; empty when nothing is.
std::string find_conflict(c10d::Store& store, std::uint32_t rank, std::uint32_t world_size) {
  const std::string mine = std::to_string(world_size);
  if (const std::string first = text_of(store.compareSet(kWorldSize, {}, encoded(mine)));
      first != mine)
    return fmt::format("the world size of rank {} is {}, that of another rank {}", rank, mine,
                       first);
  if (store.add(roll_key(rank), 1) > 1) return fmt::format("two processes are rank {}", rank);
  return {};
}

/// Says which ranks have not called, as far as the store still answers.
std::string silence(c10d::Store& store, std::uint32_t world_size) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::uint32_t> ranks;
  try {
    for (std::uint32_t rank = 0; rank < world_size && ranks.size() <= kNamed; ++rank) {
      if (store.add(roll_key(rank), 0) == 0) ranks.push_back(rank);
    }
  } catch (const std::exception&) {
    return fmt::format("not all {} ranks answered in time", world_size);
  }
  const bool has_more = ranks.size() > kNamed;
  if (has_more) ranks.pop_back();
  return fmt::format("{} {}{} of {} did not answer in time", ranks.size() == 1 ? "rank" : "ranks",
                     fmt::join(ranks, ", "), has_more ? " and more" : "", world_size);
}

std::string wait_for_result(c10d::Store& store, std::uint32_t world_size) {
  try {
    return text_of(store.get(kResult));
  } catch (const std::exception&) {
    const std::string silent = silence(store, world_size);
    let_all_know(store, world_size);
    raise(ErrorCode::PeerFailed, "starting the ranks: " + silent,
          "a rank ended, hangs or is unreachable: read its message, then restart all ranks");
  }
}

}  // namespace

void call_roll(c10d::Store& store, std::uint32_t rank, std::uint32_t world_size) {
  const std::string conflict = find_conflict(store, rank, world_size);
  if (!conflict.empty()) {
    store.set(kResult, encoded(conflict));
  } else if (store.add(kAnswered, 1) == world_size) {
    store.set(kResult, encoded(kComplete));
  }
  const std::string result = conflict.empty() ? wait_for_result(store, world_size) : conflict;
  if (result == kComplete) return;
  let_all_know(store, world_size);
  raise(ErrorCode::Mismatch, "starting the ranks: " + result,
        "give every process a RANK of its own and all the same WORLD_SIZE, and each job a "
        "MASTER_PORT of its own");
}

void let_all_know(c10d::Store& store, std::uint32_t world_size) noexcept {
  constexpr std::chrono::milliseconds kPatience{3000}, kPause{10};
  constexpr const char* kKnown = "roll/known";
  try {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (std::int64_t known = store.add(kKnown, 1);
         known < world_size && std::chrono::steady_clock::now() < end;
         known = store.add(kKnown, 0)) {
      std::this_thread::sleep_for(kPause);
    }
  } catch (const std::exception&) {  // the store is gone: all of them know
  }
}

}  // namespace unishard::trainer::detail
