// A save that fails or dies at its n-th changing call, for every n: afterwards the folder holds
// exactly the old checkpoint or the new one, both complete, and the next save succeeds and clears
// up.
#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "fault_storage.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>

namespace unishard {
namespace {

using test::identity_of;
using test::kZstd;

// Its chunks are as large as those of a compressed save, which may share them.
const test::CheckpointSpec kOld{
    .world_size = 2, .step = 1, .tag = "global_step1", .chunk_bytes = kChunkBytes};
const test::CheckpointSpec kNew{.world_size = 3, .seed = 2, .step = 2, .tag = "global_step2"};

// One that shares chunks with the old one.
test::CheckpointSpec sharing(const Path& root) {
  test::CheckpointSpec spec = kOld;
  spec.step = kNew.step;
  spec.tag = kNew.tag;
  spec.changed = "ln_f.weight";
  spec.base = root / kOld.tag;
  return spec;
}

struct Expected {
  std::string old_identity, new_identity;
  explicit Expected(test::CheckpointSpec next = kNew) {
    const test::TempDir a, b;
    next.base.clear();
    test::write_example(a.path(), kOld);
    test::write_example(b.path(), next);
    old_identity = identity_of(a.path());
    new_identity = identity_of(b.path());
  }
};

// Complete checkpoints only, `latest` on one of them, and the old one untouched unless the new one
// replaced it.
void check_after(const Path& root, const Expected& expected, const std::string& when) {
  const std::string now = identity_of(root);
  EXPECT_TRUE(now == expected.old_identity || now == expected.new_identity) << when;
  for (const TagEntry& tag : list_tags(posix_storage(), root)) {
    EXPECT_EQ(tag.problem, "") << when;
    const std::string found = identity_of(root, tag.tag);
    EXPECT_EQ(found, tag.tag == kOld.tag ? expected.old_identity : expected.new_identity) << when;
  }
  EXPECT_EQ(identity_of(root, kOld.tag), expected.old_identity) << when;
}

void check_next_save(const Path& root, const Expected& expected,
                     const test::CheckpointSpec& next = kNew) {
  test::write_example(root, next);
  EXPECT_EQ(identity_of(root), expected.new_identity);
  prune(posix_storage(), root, 0);
  EXPECT_EQ(posix_storage().list(root).size(), 3u) << "latest and two tags, nothing else";
}

struct Injection {
  const char* name;
  test::Fault fault;
  int error;
  Compression compression = {};
  bool shares = false;
};
class Injected : public testing::TestWithParam<Injection> {};

TEST_P(Injected, FailureAtEveryCallLeavesACompleteCheckpoint) {
  const auto next_in = [&](const Path& root) {
    test::CheckpointSpec next = GetParam().shares ? sharing(root) : kNew;
    next.compression = GetParam().compression;
    return next;
  };
  const Expected expected(next_in({}));
  std::uint64_t failures = 0;
  for (std::uint64_t at = 0;; ++at) {
    const test::TempDir dir;
    test::write_example(dir.path(), kOld);
    test::FaultStorage storage(GetParam().fault, at, GetParam().error);
    const std::optional<Error> error =
        test::thrown_by([&] { test::write_example(dir.path(), next_in(dir.path()), storage); });
    if (error) {
      ++failures;
      EXPECT_THAT(*error,
                  test::Fails(GetParam().error == ENOSPC ? ErrorCode::NoSpace : ErrorCode::Io));
    }
    check_after(dir.path(), expected, "call " + std::to_string(at));
    if (at % 16 == 0) check_next_save(dir.path(), expected, next_in(dir.path()));
    if (!error && storage.calls() <= at) break;
  }
  EXPECT_GT(failures, 30u);
}

INSTANTIATE_TEST_SUITE_P(
    All, Injected,
    testing::Values(Injection{"OnceEio", test::Fault::FailOnce, EIO},
                    Injection{"FullDisk", test::Fault::FailOn, ENOSPC},
                    Injection{"TornWrite", test::Fault::TornWrite, EIO},
                    Injection{"OnceEioCompressed", test::Fault::FailOnce, EIO, kZstd},
                    Injection{"FullDiskCompressed", test::Fault::FailOn, ENOSPC, kZstd},
                    Injection{"TornWriteCompressed", test::Fault::TornWrite, EIO, kZstd},
                    Injection{"OnceEioIncremental", test::Fault::FailOnce, EIO, {}, true},
                    Injection{"FullDiskIncremental", test::Fault::FailOn, ENOSPC, {}, true},
                    Injection{"TornWriteIncremental", test::Fault::TornWrite, EIO, kZstd, true}),
    [](const auto& row) { return std::string(row.param.name); });

// Saves in a child process that takes SIGKILL just before `step`; false when it was never reached.
bool dies_at(int step, const Path& root, const test::CheckpointSpec& spec) {
  const pid_t child = ::fork();
  if (child == 0) {
    CommitOptions options;
    options.on_step = [step](CommitStep at) {
      if (static_cast<int>(at) == step) ::raise(SIGKILL);
    };
    test::write_example(root, spec, posix_storage(), options);
    ::_exit(0);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFSIGNALED(status);
}

// Really killed: a child process takes SIGKILL at each numbered step of the protocol.
void expect_safe_at_every_step(const std::function<test::CheckpointSpec(const Path&)>& next_in) {
  const Expected expected(next_in({}));
  for (int step = 1; step <= kCommitStepCount; ++step) {
    const test::TempDir dir;
    test::write_example(dir.path(), kOld);
    const test::CheckpointSpec next = next_in(dir.path());
    ASSERT_TRUE(dies_at(step, dir.path(), next)) << "step " << step << " was never reached";
    check_after(dir.path(), expected, "killed at step " + std::to_string(step));
    const bool published = step > static_cast<int>(CommitStep::PublishTag);
    EXPECT_EQ(std::filesystem::exists(dir.path() / next.tag), published) << step;
    EXPECT_EQ(identity_of(dir.path()), step > static_cast<int>(CommitStep::MoveLatest)
                                           ? expected.new_identity
                                           : expected.old_identity)
        << step;
    check_next_save(dir.path(), expected, next);
  }
}

TEST(Killed, AtEveryCommitStepLeavesACompleteCheckpoint) {
  expect_safe_at_every_step([](const Path&) { return kNew; });
}

TEST(Killed, AtEveryCommitStepOfAnIncrementalSaveLeavesACompleteCheckpoint) {
  expect_safe_at_every_step(sharing);
}

TEST(Killed, WhileReplacingATagKeepsOneOfTheTwo) {
  for (int step = 1; step <= kCommitStepCount; ++step) {
    const test::TempDir dir;
    test::write_example(dir.path(), kOld);
    test::CheckpointSpec again = kOld;
    again.seed = 3;
    ASSERT_TRUE(dies_at(step, dir.path(), again)) << "step " << step << " was never reached";
    EXPECT_NO_THROW(identity_of(dir.path())) << "killed at step " << step;
    EXPECT_NO_THROW(test::write_example(dir.path(), again));
    EXPECT_EQ(posix_storage().list(dir.path()).size(), 2u);
  }
}

}  // namespace
}  // namespace unishard
