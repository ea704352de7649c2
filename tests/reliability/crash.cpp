// Crash states: every workload is carried out once on a recording storage; then each state in which
// a crash may have left the disk is made in memory, opened, verified and worked on again.
//
//   reliability_crash [--long] [--seed N] [--count N] [WORKLOAD...]
//     the states
//   reliability_crash [--long] [--seed N] teeth [WORKLOAD...]
//     the same with one sync left out, for every sync: each must be missed
#include "unishard/format/staging_names.hpp"

#include "campaign.hpp"
#include "crash_states.hpp"
#include "workloads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <unordered_set>

namespace unishard::test {
namespace {

const Path kFolder = "/checkpoints";
constexpr std::array kDurabilities = {Durability::Ordered, Durability::Weak};
constexpr std::size_t kStatesShort = 1200, kStatesLong = 16'000;
constexpr std::array<std::size_t, 3> kStatesTeeth = {400, 3000, 12'000};
/// A short run gives up after so many of kStatesTeeth.
constexpr std::size_t kTriesShort = 2;

struct Recording {
  InodePtr before;
  std::uint64_t last_inode = 0;
  std::vector<Operation> journal;
  std::optional<RecordingStorage::Dropped> dropped;
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

std::string wrong_with(const Workload& workload, const CrashState& state, std::uint64_t last_inode,
                       bool goes_on) {
  try {
    RecordingStorage storage(state.root, last_inode);
    const std::string wrong = workload.check(storage, state.returned);
    return wrong.empty() && goes_on ? workload.again(storage) : wrong;
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

/// Looks at each distinct state. `goes_on`: does the work again there, and goes on after a finding.
Result check_states(const Workload& workload, const Recording& recording, CrashOptions options,
                    bool goes_on, std::unordered_set<std::uint64_t>& seen) {
  Result result;
  std::unordered_set<std::uint64_t> seen_returned;
  CrashStates(recording.before, recording.journal, options).each([&](const CrashState& state) {
    const std::uint64_t digest = digest_of(*state.root);
    const bool is_new = seen.insert(digest).second;
    if (!is_new && (!state.returned || !seen_returned.insert(digest).second)) return true;
    result.states += is_new;
    ++result.looked_at;
    const std::string wrong = wrong_with(workload, state, recording.last_inode, goes_on);
    if (wrong.empty()) return true;
    if (result.findings++ == 0) result.first = wrong + "\n  " + state.text;
    return goes_on;
  });
  return result;
}

/// How many states to make of a workload and a kind of file system; fewer differ.
std::size_t states_of(const Campaign& campaign) {
  if (campaign.count != 0) return campaign.count;
  return campaign.is_long ? kStatesLong : kStatesShort;
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
        {.durability = durability, .seed = campaign.seed, .states = states_of(campaign)}, true,
        seen);
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

/// Whether a staging folder is synced a second time anyhow: nothing in it has a new name since the
/// sync before, or nothing outside of it has one before the next sync.
bool is_repeated(const Recording& recording) {
  const auto& [dropped, at] = *recording.dropped;
  if (dropped.kind != Operation::Kind::SyncFolder ||
      dropped.text.find(kPartialMark) == std::string::npos)
    return false;
  const auto is_same_sync = [&](const Operation& other) {
    return other.kind == dropped.kind && other.inode == dropped.inode;
  };
  for (std::size_t i = at; i < recording.journal.size(); ++i) {
    if (is_same_sync(recording.journal[i])) return true;
    if (recording.journal[i].changes_names() && recording.journal[i].inode != dropped.inode) break;
  }
  for (std::size_t i = at; i > 0; --i) {
    if (is_same_sync(recording.journal[i - 1])) return true;
    if (recording.journal[i - 1].changes_names() && recording.journal[i - 1].inode == dropped.inode)
      break;
  }
  return false;
}

/// Tries a few states first: most of what can go wrong does so in many of them.
bool goes_wrong(const Workload& workload, const Recording& recording, std::size_t tries,
                const Campaign& campaign) {
  std::unordered_set<std::uint64_t> seen;
  for (const std::size_t states : std::span(kStatesTeeth).first(tries)) {
    for (const Durability durability : {Durability::Weak, Durability::Ordered}) {
      const CrashOptions options{.durability = durability, .seed = campaign.seed, .states = states};
      if (check_states(workload, recording, options, false, seen).findings > 0) return true;
    }
  }
  return false;
}

/// Leaves out each sync of a workload in turn; returns how many there are.
std::size_t check_teeth_of(const Workload& workload, const Campaign& campaign, Findings& findings) {
  const Stopwatch watch;
  const std::size_t tries = campaign.is_long ? kStatesTeeth.size() : kTriesShort;
  std::size_t syncs = 0, excused = 0;
  std::uint64_t before = findings.count();
  if (goes_wrong(workload, record(workload), 1, campaign))
    findings.add(workload.name + ": something goes wrong with all syncs");
  for (;; ++syncs) {
    const Recording recording = record(workload, syncs);
    if (!recording.dropped) break;
    if (is_repeated(recording) || recording.dropped->operation.text == workload.unneeded) {
      ++excused;
    } else if (!goes_wrong(workload, recording, tries, campaign)) {
      findings.add(fmt::format("{}: nothing goes wrong without `{}`", workload.name,
                               recording.dropped->operation.text));
    }
  }
  print_row("a sync less: " + workload.name, syncs, fmt::format("syncs, {} excused", excused),
            findings.count() - before, watch.seconds(), campaign.seed);
  return syncs;
}

int check_teeth(const Campaign& campaign) {
  const Stopwatch watch;
  Findings findings;
  std::size_t syncs = 0;
  for (const Workload& workload : all_workloads(kFolder, campaign.is_long))
    if (campaign.wants(workload.name)) syncs += check_teeth_of(workload, campaign, findings);
  print_row("a sync less: all", syncs, "syncs left out", findings.count(), watch.seconds(),
            campaign.seed);
  return findings.count() == 0 ? 0 : 1;
}

int check_all(const Campaign& campaign) {
  const Stopwatch watch;
  Findings findings;
  std::uint64_t states = 0;
  for (const Workload& workload : all_workloads(kFolder, campaign.is_long))
    if (campaign.wants(workload.name)) states += check_workload(workload, campaign, findings);
  print_row("crash states: all", states, "distinct states", findings.count(), watch.seconds(),
            campaign.seed);
  return findings.count() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace unishard::test

int main(int argc, char** argv) {
  using namespace unishard::test;
  Campaign campaign = Campaign::from_arguments(argc, argv);
  return std::erase(campaign.only, "teeth") > 0 ? check_teeth(campaign) : check_all(campaign);
}
