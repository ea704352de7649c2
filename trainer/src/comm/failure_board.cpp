#include "comm/failure_board.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace unishard::trainer::detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kAsked = 64;
/// A rank that is alive fails soon after the others: its connections to them are closed.
constexpr milliseconds kPatience{3000}, kPause{50};

std::string key_of(std::uint32_t rank) { return fmt::format("failed/{}", rank); }

bool has_answered(c10d::Store& store, std::uint32_t rank) { return store.check({key_of(rank)}); }

std::vector<std::uint32_t> wait_for_answers(c10d::Store& store, std::vector<std::uint32_t> ranks) {
  const auto end = steady_clock::now() + kPatience;
  while (!ranks.empty() && steady_clock::now() < end) {
    std::this_thread::sleep_for(kPause);
    std::erase_if(ranks, [&](std::uint32_t rank) { return has_answered(store, rank); });
  }
  return ranks;
}

std::string sentence(c10d::Store& store, const std::vector<std::uint32_t>& others,
                     const std::vector<std::uint32_t>& silent, const std::string& mine) {
  std::string text;
  for (const std::uint32_t rank : others) {
    if (std::ranges::find(silent, rank) != silent.end()) {
      text += fmt::format("; rank {} did not answer", rank);
      continue;
    }
    const std::vector<std::uint8_t> bytes = store.get(key_of(rank));
    const std::string theirs(bytes.begin(), bytes.end());
    if (theirs != mine) text += fmt::format("; rank {} failed in: {}", rank, theirs);
  }
  return text.empty() ? text : text.substr(2);
}

}  // namespace

std::string ask_about_failure(c10d::Store& store, std::string_view keeper, std::uint32_t rank,
                              std::uint32_t world_size, const std::string& what) noexcept {
  std::string unreachable;
  try {
    unreachable =
        fmt::format("{}, which keeps the list of the ranks, has ended or does not answer", keeper);
    store.set(key_of(rank), std::vector<std::uint8_t>(what.begin(), what.end()));
    store.wait({key_of(rank)}, kPatience);  // fails where the rank that has the store hangs
    std::vector<std::uint32_t> others;
    for (std::uint32_t other = 0; other < std::min(world_size, kAsked); ++other) {
      if (other != rank) others.push_back(other);
    }
    return sentence(store, others, wait_for_answers(store, others), what);
  } catch (...) {  // the failure itself is reported all the same
    return unreachable;
  }
}

}  // namespace unishard::trainer::detail
