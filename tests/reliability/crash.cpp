// Crash states: every workload is carried out once on a recording storage; then each state in which
// a crash may have left the disk is made in memory, opened, verified and worked on again.
//
//   reliability_crash [--long] [--seed N] [WORKLOAD...]      the states
//   reliability_crash --long --seed N teeth [WORKLOAD...]    the same with one sync left out, for
//                                                            every sync: each must be missed
#include "unishard/format/error.hpp"

#include "campaign.hpp"
#include "crash_states.hpp"
#include "workloads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace unishard::test {
namespace {

constexpr std::array kDurabilities = {Durability::Ordered, Durability::Weak};

struct Recording {
  InodePtr before;
  std::uint64_t last_inode = 0;
  std::vector<Operation> journal;
  std::string dropped;
};

Recording record(const Workload& workload, std::optional<std::size_t> dropped_sync = {}) {
  RecordingStorage storage;
  workload.prepare(storage);
  Recording recording{copy_tree(storage.root()), 0, {}, {}};
  storage.start_journal(dropped_sync);
  workload.work(storage);
  storage.note_returned();
  recording.journal = storage.journal();
  recording.last_inode = storage.last_inode();
  recording.dropped = storage.dropped();
  return recording;
}

std::string wrong_with(const Workload& workload, const CrashState& state,
                       std::uint64_t last_inode) {
  try {
    RecordingStorage storage(state.root, last_inode);
    const std::string wrong = workload.check(storage, state.returned);
    return wrong.empty() ? workload.again(storage) : wrong;
  } catch (const std::exception& error) {
    return fmt::format("failed: {}", error.what());
  }
}

struct Result {
  std::uint64_t states = 0;  ///< that differ
  std::uint64_t looked_at = 0;
  std::uint64_t findings = 0;
  std::string first;
};

/// Checks each distinct state until `stop_after` findings.
Result check_states(const Workload& workload, const Recording& recording, CrashOptions options,
                    std::uint64_t stop_after, std::unordered_set<std::uint64_t>& seen) {
  Result result;
  std::unordered_set<std::uint64_t> seen_returned;
  CrashStates(recording.before, recording.journal, options).each([&](const CrashState& state) {
    const std::uint64_t digest = digest_of(*state.root);
    const bool is_new = seen.insert(digest).second;
    if (!is_new && (!state.returned || !seen_returned.insert(digest).second)) return true;
    result.states += is_new;
    ++result.looked_at;
    const std::string wrong = wrong_with(workload, state, recording.last_inode);
    if (wrong.empty()) return true;
    if (result.findings++ == 0) result.first = wrong + "\n  " + state.text;
    return result.findings < stop_after;
  });
  return result;
}

std::uint64_t check_workload(const Workload& workload, const Campaign& campaign,
                             Findings& findings) {
  const Stopwatch watch;
  const Recording recording = record(workload);
  std::unordered_set<std::uint64_t> seen;
  std::uint64_t states = 0, found = 0;
  for (const Durability durability : kDurabilities) {
    const Result result = check_states(
        workload, recording,
        {.durability = durability, .seed = campaign.seed, .samples = campaign.is_long ? 12u : 1u},
        ~std::uint64_t{0}, seen);
    states += result.states;
    found += result.findings;
    if (result.findings > 0)
      findings.add(fmt::format("{} ({}): {}", workload.name,
                               durability == Durability::Weak ? "weak" : "ordered", result.first));
  }
  print_row("crash states: " + workload.name, states, "distinct states", found, watch.seconds(),
            campaign.seed);
  return states;
}

int check_all(const Campaign& campaign) {
  const Stopwatch watch;
  Findings findings;
  std::uint64_t states = 0;
  for (const Workload& workload : all_workloads())
    if (campaign.wants(workload.name)) states += check_workload(workload, campaign, findings);
  print_row("crash states: all", states, "distinct states", findings.count(), watch.seconds(),
            campaign.seed);
  return findings.count() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace unishard::test

int main(int argc, char** argv) {
  using namespace unishard::test;
  return check_all(Campaign::from_arguments(argc, argv));
}
