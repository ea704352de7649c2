// Faults: while a workload is carried out on real files, one system call that changes something
// goes wrong, each in turn: EIO, ENOSPC, EDQUOT, EINTR, or a write of half its bytes. Afterwards
// the old result or the new one is whole, the error has the right code, and the next time works.
//
//   reliability_faults [--long] [--seed N] [WORKLOAD...]
#include "unishard/format/error.hpp"

#include "campaign.hpp"
#include "failing_calls.hpp"
#include "temp_dir.hpp"
#include "workloads.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string>

namespace unishard::test {
namespace {

struct Kind {
  const char* name;
  int error;
};
constexpr std::array kKinds = {Kind{"EIO", EIO}, Kind{"ENOSPC", ENOSPC}, Kind{"EDQUOT", EDQUOT},
                               Kind{"EINTR", EINTR}, Kind{"half a write", 0}};

/// What a call that was interrupted, or wrote a part, is allowed to do to the whole: nothing.
bool must_go_on(const Kind& kind, const std::string& call) {
  return kind.error == 0 ||
         (kind.error == EINTR && (call == "open" || call == "pwrite" || call == "fallocate"));
}

std::string wrong_with_error(const Kind& kind, const Error& error) {
  if (must_go_on(kind, failed_call())) return fmt::format("it gives up: {}", error.what());
  const bool is_full = kind.error == ENOSPC || kind.error == EDQUOT;
  const ErrorCode expected = is_full ? ErrorCode::NoSpace : ErrorCode::Io;
  if (error.code() == expected) return "";
  return fmt::format("code {}: {}", to_string(error.code()), error.what());
}

/// Carries the work out with one failure; returns what is wrong.
std::string wrong_after(const Workload& workload, const Kind& kind, std::uint64_t at) {
  Storage& storage = posix_storage();
  bool returned = false;
  std::string wrong;
  start_failing({.at = at, .error = kind.error});
  try {
    workload.work(storage);
    returned = true;
  } catch (const Error& error) {
    stop_failing();
    wrong = wrong_with_error(kind, error);
  }
  stop_failing();
  if (wrong.empty()) wrong = workload.check(storage, returned);
  return wrong.empty() ? workload.again(storage) : wrong;
}

/// An empty folder, then what the workload begins with.
void prepare(const Workload& workload, const Path& folder) {
  std::filesystem::remove_all(folder);
  workload.prepare(posix_storage());
}

std::uint64_t count_calls(const Workload& workload, const Path& folder) {
  prepare(workload, folder);
  start_counting();
  workload.work(posix_storage());
  return stop_failing();
}

/// Lets every `stride`-th call fail, in every way; returns how many did.
std::uint64_t fail_calls(const Workload& workload, const Path& folder, std::uint64_t first,
                         std::uint64_t stride, Findings& findings) {
  std::uint64_t tries = 0;
  const std::uint64_t calls = count_calls(workload, folder);
  for (const Kind& kind : kKinds) {
    for (std::uint64_t at = first % stride; at < calls; at += stride) {
      prepare(workload, folder);
      const std::string wrong = wrong_after(workload, kind, at);
      tries += failed_call().empty() ? std::uint64_t{0} : std::uint64_t{1};
      if (!wrong.empty())
        findings.add(fmt::format("{}: {} of call {} ({}): {}", workload.name, kind.name, at,
                                 failed_call(), wrong));
    }
  }
  return tries;
}

int run(const Campaign& campaign) {
  const TempDir temp("/dev/shm");  // syncing costs nothing there
  const Path folder = temp.path() / "checkpoints";
  Findings findings;
  const Stopwatch all;
  std::uint64_t total = 0;
  for (const Workload& workload : all_workloads(folder, campaign.is_long)) {
    if (!campaign.wants(workload.name)) continue;
    const Stopwatch watch;
    const std::uint64_t before = findings.count();
    const std::uint64_t tries =
        fail_calls(workload, folder, campaign.seed, campaign.is_long ? 1 : 16, findings);
    total += tries;
    print_row("faults: " + workload.name, tries, "failing calls", findings.count() - before,
              watch.seconds(), campaign.seed);
  }
  print_row("faults: all", total, "failing calls", findings.count(), all.seconds(), campaign.seed);
  return findings.count() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace unishard::test

int main(int argc, char** argv) {
  return unishard::test::run(unishard::test::Campaign::from_arguments(argc, argv));
}
