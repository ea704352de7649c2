// What a save may replace, who may write at the same time, and what retention leaves alone.
#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "fault_storage.hpp"
#include "make_checkpoint.hpp"
#include "storage/posix_lock.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace unishard {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::Fails;
using test::identity_of;
using test::message_and_hint;
using test::write_file;
using testing::AllOf;
using testing::HasSubstr;

test::CheckpointSpec at_step(std::int64_t step) {
  return {.world_size = 2, .step = step, .tag = "global_step" + std::to_string(step)};
}

std::vector<std::string> names_in(const Path& folder) {
  std::vector<std::string> names;
  for (const Entry& entry : posix_storage().list(folder)) names.push_back(entry.name);
  return names;
}

class Folder : public testing::Test {
 protected:
  const Path& root() const { return dir_.path(); }
  Storage& storage = posix_storage();

 private:
  test::TempDir dir_;
};

using Replacing = Folder;

TEST_F(Replacing, ACheckpointThatLatestNeverNamedSaysHowToGoOn) {
  test::write_example(root(), at_step(2), storage);
  fs::remove(root() / "latest");
  CommitOptions options;
  options.replace = false;
  EXPECT_THAT(message_and_hint(
                  error_of([&] { test::write_example(root(), at_step(2), storage, options); })),
              testing::AllOf(HasSubstr("global_step2 is there already"),
                             HasSubstr("write global_step2 into " + (root() / "latest").native())));
}

TEST_F(Replacing, AFolderOfAnotherProgramIsNeverReplaced) {
  write_file(root() / "global_step2/mp_rank_00_model_states.pt", "deepspeed");
  EXPECT_THAT(message_and_hint(error_of([&] { test::write_example(root(), at_step(2), storage); })),
              HasSubstr("global_step2 is there already and is not a UniShard checkpoint"));
  EXPECT_EQ(names_in(root() / "global_step2"),
            std::vector<std::string>{"mp_rank_00_model_states.pt"});
}

TEST_F(Replacing, AFileOrALinkOrAnEmptyFolderOfThatNameStays) {
  write_file(root() / "global_step1", "a file");
  fs::create_directory(root() / "global_step2");
  test::write_example(root() / "elsewhere", at_step(3), storage);
  fs::create_directory_symlink(root() / "elsewhere/global_step3", root() / "global_step3");
  const std::string before = identity_of(root() / "global_step3");
  for (const std::int64_t step : {1, 2, 3}) {
    test::CheckpointSpec spec = at_step(step);
    spec.seed = 2;
    EXPECT_THAT(error_of([&] { test::write_example(root(), spec, storage); }),
                Fails(ErrorCode::AlreadyExists))
        << step;
  }
  EXPECT_TRUE(fs::is_regular_file(root() / "global_step1"));
  EXPECT_TRUE(fs::is_symlink(root() / "global_step3"));
  EXPECT_EQ(identity_of(root() / "global_step3"), before);
}

TEST_F(Replacing, AFolderWhoseManifestIsLostKeepsItsShards) {
  test::write_example(root(), at_step(2), storage);
  fs::remove(root() / "global_step2/manifest.json");
  EXPECT_THAT(error_of([&] { test::write_example(root(), at_step(2), storage); }),
              Fails(ErrorCode::AlreadyExists));
  EXPECT_EQ(names_in(root() / "global_step2").size(), 2u);
}

TEST_F(Replacing, WhatAppearsJustBeforePublishingStays) {
  CommitOptions options;
  options.on_step = [&](CommitStep step) {
    if (step == CommitStep::PublishTag) write_file(root() / "global_step2/notes.txt", "mine");
  };
  EXPECT_THAT(error_of([&] { test::write_example(root(), at_step(2), storage, options); }),
              Fails(ErrorCode::AlreadyExists));
  EXPECT_EQ(names_in(root()), std::vector<std::string>{"global_step2"});
}

TEST_F(Replacing, ForeignFilesInAReplacedCheckpointAreKept) {
  test::write_example(root(), at_step(2), storage);
  write_file(root() / "global_step2/notes.txt", "mine");
  std::vector<std::string> warnings;
  CommitOptions options;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  test::CheckpointSpec again = at_step(2);
  again.seed = 2;
  test::write_example(root(), again, storage, options);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("notes.txt"));
  int kept = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root()))
    kept += entry.path().filename() == "notes.txt";
  EXPECT_EQ(kept, 1);
}

TEST_F(Replacing, NoCheckpointIsSavedInsideAnother) {
  test::write_example(root(), at_step(2), storage);
  const Path outer = root() / "global_step2";
  const std::vector<std::string> before = names_in(outer);
  for (const Path& inside : {outer, outer / "deeper"}) {
    EXPECT_THAT(error_of([&] { test::write_example(inside, at_step(5), storage); }),
                Fails(ErrorCode::AlreadyExists, "global_step2 is a checkpoint", "beside"));
  }
  EXPECT_EQ(names_in(outer), before);
}

TEST_F(Replacing, LatestOfAnotherProgramIsNotMoved) {
  write_file(root() / "global_step4/mp_rank_00_model_states.pt", "deepspeed");
  write_file(root() / "latest", "global_step4");
  EXPECT_THAT(message_and_hint(error_of([&] { test::write_example(root(), at_step(5), storage); })),
              HasSubstr("which is not a UniShard checkpoint"));
  fs::remove(root() / "latest");
  fs::create_directory(root() / "latest");
  error_of([&] { test::write_example(root(), at_step(5), storage); });
  EXPECT_FALSE(fs::exists(root() / "global_step5"));
}

/// Holds a save open in a child process until the destructor, which kills it.
class OtherWriter {
 public:
  OtherWriter(const Path& folder, const std::string& tag) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    child_ = ::fork();
    if (child_ == 0) {
      const SaveTransaction save(posix_storage(), folder, tag, new_save_id());
      write_file(save.staging() / "shard-00000-of-00001.h5", "half a shard");
      if (::write(ready[1], "x", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(std::exchange(child_, -1), nullptr, 0);
  }
  ~OtherWriter() { kill(); }
  pid_t process() const { return child_; }

 private:
  pid_t child_ = -1;
};

using TwoWriters = Folder;

TEST_F(TwoWriters, TheSecondFailsNamingTheFirstAndTouchesNothing) {
  test::write_example(root(), at_step(1), storage);
  OtherWriter other(root(), "global_step2");
  const std::vector<std::string> before = names_in(root());
  EXPECT_THAT(message_and_hint(error_of([&] { test::write_example(root(), at_step(2)); })),
              AllOf(HasSubstr("global_step2 is being written by process " +
                              std::to_string(other.process())),
                    HasSubstr(" since 20")));
  EXPECT_EQ(names_in(root()), before);
  test::write_example(root(), at_step(3), storage);  // another tag is another output
}

TEST_F(TwoWriters, TheStagingOfADeadOneGoesAndThatOfALivingOneStays) {
  test::write_example(root(), at_step(1), storage);
  {
    OtherWriter dead(root(), "global_step2");
    dead.kill();
  }
  OtherWriter living(root(), "global_step3");
  test::write_example(root(), at_step(2), storage);
  prune(storage, root(), 5);
  std::size_t staging = 0;
  for (const std::string& name : names_in(root())) {
    if (!is_partial_name(name)) continue;
    ++staging;
    EXPECT_TRUE(name.starts_with("global_step3")) << name;
    EXPECT_EQ(names_in(root() / name).size(), 1u);
  }
  EXPECT_EQ(staging, 1u);
}

TEST_F(TwoWriters, TheStagingOfDeadOnesOfOtherTagsGoesWithASaveAndWithPrune) {
  const auto staging = [&] { return std::ranges::count_if(names_in(root()), is_partial_name); };
  const auto leave_dead = [&] {
    for (const std::int64_t step : {7, 8})
      OtherWriter(root(), "global_step" + std::to_string(step)).kill();
  };
  leave_dead();
  prune(storage, root(), 1);
  EXPECT_EQ(staging(), 2) << "nothing was committed yet";
  test::write_example(root(), at_step(1), storage);
  EXPECT_EQ(staging(), 0);
  leave_dead();
  OtherWriter living(root(), "global_step9");
  EXPECT_EQ(staging(), 3);
  prune(storage, root(), 1);
  EXPECT_EQ(staging(), 1);
  living.kill();
  test::write_example(root(), at_step(2), storage);
  EXPECT_EQ(names_in(root()), (std::vector<std::string>{"global_step1", "global_step2", "latest"}));
}

TEST_F(TwoWriters, StagingOfAFirstSaveStaysUntilTheNextCommit) {
  {
    OtherWriter dead(root(), "global_step2");
    dead.kill();
  }
  {
    const SaveTransaction save(storage, root(), "global_step2", new_save_id());
    EXPECT_EQ(names_in(root()).size(), 3u) << "two staging folders and a lock";
  }
  test::write_example(root(), at_step(2), storage);
  EXPECT_EQ(names_in(root()), (std::vector<std::string>{"global_step2", "latest"}));
}

TEST_F(TwoWriters, AWriterWhoseLockWasTakenOverPublishesNothing) {
  SaveTransaction save(storage, root(), "global_step2", new_save_id());
  fs::remove(root() / lock_name("global_step2"));
  const SaveTransaction other(storage, root(), "global_step2", new_save_id());
  EXPECT_THAT(error_of([&] { save.publish(); }), Fails(ErrorCode::Busy));
  EXPECT_FALSE(fs::exists(root() / "global_step2"));
}

TEST_F(TwoWriters, ALatestThatCannotBeLockedPublishesNothing) {
  test::write_example(root(), at_step(1), storage);
  fs::create_directory(root() / lock_name(kLatestFile));
  EXPECT_THROW(test::write_example(root(), at_step(2), storage), Error);
  EXPECT_FALSE(fs::exists(root() / "global_step2"));
  EXPECT_EQ(read_latest(storage, root()), "global_step1");
}

// A disk without a free inode: what cannot name the tag must not publish it.
TEST_F(TwoWriters, ALatestThatCannotBeWrittenPublishesNothing) {
  test::FaultStorage counting;
  std::uint64_t before_publishing = 0;
  CommitOptions options;
  options.on_step = [&](CommitStep step) {
    if (step == CommitStep::PublishTag) before_publishing = counting.calls();
  };
  test::write_example(root() / "a", at_step(1), counting, options);
  // The first call that publishing makes locks `latest`, the second writes beside it.
  for (const std::uint64_t call : {1u, 2u}) {
    test::FaultStorage failing(test::Fault::FailOnce, before_publishing + call, ENOSPC);
    EXPECT_THAT(error_of([&] { test::write_example(root() / "b", at_step(1), failing); }),
                Fails(ErrorCode::NoSpace));
    EXPECT_FALSE(fs::exists(root() / "b/global_step1"));
  }
}

TEST_F(TwoWriters, AFolderThatIsMovedDuringASaveIsNoDamage) {
  test::CheckpointSpec spec = at_step(2);
  spec.world_size = 1;
  CommitOptions options;
  options.on_step = [&](CommitStep step) {
    if (step == CommitStep::SyncShard && fs::exists(root() / "run"))
      fs::rename(root() / "run", root() / "moved");
  };
  EXPECT_THAT(error_of([&] { test::write_example(root() / "run", spec, storage, options); }),
              Fails(ErrorCode::Io));
}

TEST_F(TwoWriters, ManyAtOnceLeaveExactlyOneCheckpoint) {
  constexpr int kWriters = 8;
  std::vector<pid_t> children;
  for (int i = 0; i < kWriters; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    test::CheckpointSpec spec = at_step(2);
    spec.seed = static_cast<std::uint64_t>(i);
    CommitOptions options;
    options.replace = false;
    int status = 0;
    try {
      test::write_example(root(), spec, posix_storage(), options);
    } catch (const Error& error) {
      const bool is_expected =
          error.code() == ErrorCode::Busy || error.code() == ErrorCode::AlreadyExists;
      status = is_expected ? 1 : 2;
    }
    ::_exit(status);
  }
  int done = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_NE(WEXITSTATUS(status), 2);
    done += WEXITSTATUS(status) == 0;
  }
  EXPECT_EQ(done, 1);
  EXPECT_NO_THROW(identity_of(root() / "global_step2"));
  EXPECT_EQ(names_in(root()), (std::vector<std::string>{"global_step2", "latest"}));
}

using Locks = Folder;

/// As the owner on another host leaves it, whose flock() does not reach this one.
void put_foreign_lock(const Path& file) {
  write_file(file, std::string(32, 'a') + "\nanother kernel's boot\nprocess 7 (train) on far\n");
}

TEST_F(Locks, AnOwnerOnAnotherHostThatShowsLifeIsRespected) {
  const Path file = root() / ".out.lock";
  put_foreign_lock(file);
  const std::jthread heart([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      fs::last_write_time(file, fs::file_time_type::clock::now());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  const LockAttempt attempt = storage.try_lock(file, "me");
  EXPECT_EQ(attempt.lock, nullptr);
  EXPECT_EQ(attempt.holder, "process 7 (train) on far");
}

TEST_F(Locks, AnOwnerOnAnotherHostThatIsLongDeadIsReplaced) {
  const Path file = root() / ".out.lock";
  put_foreign_lock(file);
  fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(7));
  const LockAttempt attempt = storage.try_lock(file, "me");
  ASSERT_NE(attempt.lock, nullptr);
  EXPECT_TRUE(attempt.lock->still_held());
  EXPECT_EQ(storage.try_lock(file, "another").holder, "me");
}

TEST_F(Locks, AnOwnerThatDiedWithThisHostIsKnownFromTheBoot) {
  const Kernel here{.boot = "b", .host = "node3", .booted_unix_seconds = 1000};
  const auto died = [&](const std::string& boot, const std::string& host, std::int64_t renewed) {
    return died_with_host({"token", boot, "process 7", host}, renewed, here);
  };
  EXPECT_TRUE(died("a", "node3", 999));
  EXPECT_FALSE(died("a", "node3", 1000)) << "another host of this name shows life";
  EXPECT_FALSE(died("a", "node4", 999));
  EXPECT_FALSE(died("b", "node3", 999)) << "flock() decides";
  EXPECT_FALSE(died("a", "", 999)) << "an older version's file";
  EXPECT_FALSE(died_with_host({"token", "a", "process 7", "node3"}, 1,
                              {.boot = "b", .host = "node3", .booted_unix_seconds = 0}));
}

TEST_F(Locks, TheFileNamesTheHost) {
  const Path file = root() / ".out.lock";
  const LockAttempt attempt = storage.try_lock(file, "me");
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size() - 1), 0);
  EXPECT_THAT(read_text(posix_storage(), file, 4096),
              testing::EndsWith(std::string("\nme\n") + host.data() + "\n"));
}

/// The whole way, where the last boot is less than the hours ago after which every lock is dead.
TEST_F(Locks, ALockThatIsOlderThanThisBootIsTakenOver) {
  timespec up{};
  ASSERT_EQ(::clock_gettime(CLOCK_BOOTTIME, &up), 0);
  const Path file = root() / ".out.lock";
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size() - 1), 0);
  write_file(file,
             std::string(32, 'a') + "\nanother boot\nprocess 7 (train)\n" + host.data() + "\n");
  fs::last_write_time(file,
                      fs::file_time_type::clock::now() - std::chrono::seconds(up.tv_sec + 60));
  EXPECT_NE(storage.try_lock(file, "me").lock, nullptr);
}

TEST_F(Locks, TheFileGoesWithTheLockAndALostLockLeavesTheNewOwnersFile) {
  const Path file = root() / ".out.lock";
  LockAttempt first = storage.try_lock(file, "first");
  fs::remove(file);
  const LockAttempt second = storage.try_lock(file, "second");
  ASSERT_NE(second.lock, nullptr);
  EXPECT_FALSE(first.lock->still_held());
  first.lock.reset();
  EXPECT_TRUE(fs::exists(file));
  EXPECT_TRUE(second.lock->still_held());
}

/// A killed `prune` leaves the lock of the tag that it was removing.
TEST_F(Locks, OfADeadOwnerGoesWithTheNextPrune) {
  test::write_example(root());
  const Path dead = root() / lock_name("gone"), held = root() / lock_name("held"),
             empty = root() / lock_name("empty"), foreign = root() / lock_name("foreign");
  const pid_t child = ::fork();
  if (child == 0) {
    const LockAttempt lock = posix_storage().try_lock(dead, "killed");
    ::_exit(lock.lock ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const LockAttempt lock = posix_storage().try_lock(held, "me");
  ASSERT_NE(lock.lock, nullptr);
  write_file(empty, "");
  put_foreign_lock(foreign);
  prune(posix_storage(), root(), 1);
  EXPECT_TRUE(fs::exists(dead)) << "its owner may only be slow";
  for (const Path& file : {dead, held, empty, foreign})
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::minutes(2));
  prune(posix_storage(), root(), 1);
  EXPECT_FALSE(fs::exists(dead));
  for (const Path& file : {held, empty, foreign}) EXPECT_TRUE(fs::exists(file)) << file;
  EXPECT_TRUE(lock.lock->still_held());
}

TEST_F(Locks, AFileOfSomebodyElseStays) {
  write_file(root() / ".out.lock", "my notes\n");
  EXPECT_THAT(error_of([&] { storage.try_lock(root() / ".out.lock", "me"); }).what(),
              HasSubstr("is not a lock file that UniShard made"));
  EXPECT_EQ(read_text(storage, root() / ".out.lock", 100), "my notes\n");
  for (const std::string& torn : {std::string("abc1"), std::string(90, '\0')}) {
    write_file(root() / ".torn.lock", torn);
    fs::last_write_time(root() / ".torn.lock",
                        fs::file_time_type::clock::now() - std::chrono::hours(7));
    EXPECT_NE(storage.try_lock(root() / ".torn.lock", "me").lock, nullptr);
  }
}

TEST_F(Locks, AFileWithAnotherNameStays) {
  write_file(root() / "user.txt", "");
  fs::create_hard_link(root() / "user.txt", root() / ".out.lock");
  EXPECT_THAT(error_of([&] { storage.try_lock(root() / ".out.lock", "me"); }).what(),
              HasSubstr("is not a lock file that UniShard made"));
  EXPECT_EQ(fs::file_size(root() / "user.txt"), 0u);
}

TEST_F(Locks, ALinkIsNotFollowed) {
  write_file(root() / "secret", "untouched");
  fs::create_symlink(root() / "secret", root() / ".out.lock");
  error_of([&] { storage.try_lock(root() / ".out.lock", "me"); });
  EXPECT_EQ(read_text(storage, root() / "secret", 100), "untouched");
}

using Retention = Folder;

TEST_F(Retention, ABrokenNewestCheckpointIsNotCounted) {
  for (const std::int64_t step : {1, 2, 3}) test::write_example(root(), at_step(step), storage);
  fs::remove(root() / "global_step3" / shard_file_name(1, 2));
  const PruneResult result = prune(storage, root(), 1);
  EXPECT_EQ(result.removed, std::vector<std::string>{"global_step1"});
  ASSERT_EQ(result.kept.size(), 1u);
  EXPECT_EQ(result.kept[0].tag, "global_step3");
  EXPECT_NO_THROW(identity_of(root() / "global_step2"));
}

TEST_F(Retention, ATruncatedOrMixedShardIsNotCounted) {
  for (const std::int64_t step : {1, 2, 3}) test::write_example(root(), at_step(step), storage);
  fs::resize_file(root() / "global_step3" / shard_file_name(0, 2), 5000);
  fs::copy_file(root() / "global_step1" / shard_file_name(0, 2),
                root() / "global_step2" / shard_file_name(0, 2),
                fs::copy_options::overwrite_existing);
  EXPECT_TRUE(prune(storage, root(), 1).removed.empty());
}

TEST_F(Retention, ACheckpointWithForeignFilesIsKeptAndFailsNoSave) {
  test::write_example(root(), at_step(1), storage);
  write_file(root() / "global_step1/notes.txt", "mine");
  std::vector<std::string> warnings;
  CommitOptions options;
  options.keep_last = 1;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  test::write_example(root(), at_step(2), storage, options);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("global_step1 is kept: it holds \"notes.txt\""));
  EXPECT_NO_THROW(test::write_example(root(), at_step(3), storage, options));
  EXPECT_TRUE(fs::exists(root() / "global_step1/manifest.json"));
  EXPECT_FALSE(fs::exists(root() / "global_step2"));
}

TEST_F(Retention, ADivergedCheckpointRemovesNoOlderOne) {
  test::write_example(root(), at_step(1), storage);
  test::CheckpointSpec diverged = at_step(2);
  diverged.diverged = true;
  std::vector<std::string> warnings;
  CommitOptions options;
  options.keep_last = 1;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  test::write_example(root(), diverged, storage, options);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0],
              HasSubstr("wte.weight [exp_avg] holds 2048 NaN and 0 infinite values: no older"));
  EXPECT_TRUE(fs::exists(root() / "global_step1/manifest.json"));
  test::write_example(root(), at_step(3), storage, options);
  EXPECT_FALSE(fs::exists(root() / "global_step1"));
}

TEST_F(Retention, FilesThatNfsKeepsForReadersDelayARemovalAndNothingElse) {
  test::write_example(root(), at_step(1), storage);
  write_file(root() / "global_step1/.nfs000000000001", "open elsewhere");
  CommitOptions options;
  options.keep_last = 1;
  EXPECT_NO_THROW(test::write_example(root(), at_step(2), storage, options));
  EXPECT_FALSE(fs::exists(root() / "global_step1"));
  for (const auto& entry : fs::directory_iterator(root())) {
    if (has_mark(entry.path().filename().string(), kRemovedMark))
      fs::remove(entry.path() / ".nfs000000000001");
  }
  EXPECT_NO_THROW(test::write_example(root(), at_step(3), storage, options));
  EXPECT_EQ(names_in(root()), (std::vector<std::string>{"global_step3", "latest"}));
}

TEST_F(Retention, ADamagedCheckpointIsKeptWithANote) {
  for (const std::int64_t step : {1, 2, 3}) test::write_example(root(), at_step(step), storage);
  fs::remove(root() / "global_step1" / shard_file_name(1, 2));
  const PruneResult result = prune(storage, root(), 1);
  EXPECT_EQ(result.removed, std::vector<std::string>{"global_step2"});
  ASSERT_EQ(result.kept.size(), 1u);
  EXPECT_EQ(result.kept[0].tag, "global_step1");
  EXPECT_THAT(result.kept[0].reason, HasSubstr("it is damaged"));
}

TEST_F(Retention, ACopyUnderAnotherNameIsKeptAndDoesNotCount) {
  for (const std::int64_t step : {1, 2, 3}) test::write_example(root(), at_step(step), storage);
  fs::copy(root() / "global_step1", root() / "backup");
  fs::copy(root() / "global_step3", root() / "newest");
  const PruneResult result = prune(storage, root(), 2);
  EXPECT_EQ(result.removed, std::vector<std::string>{"global_step1"});
  EXPECT_EQ(names_in(root()), (std::vector<std::string>{"backup", "global_step2", "global_step3",
                                                        "latest", "newest"}));
  ASSERT_EQ(result.kept.size(), 2u);
  EXPECT_THAT(result.kept[1].reason, HasSubstr("was saved as \"global_step1\""));
}

TEST_F(Retention, ShardsWithoutAManifestAreKeptWithANote) {
  for (const std::int64_t step : {1, 2}) test::write_example(root(), at_step(step), storage);
  fs::create_directory(root() / "mine");
  fs::remove(root() / "global_step1" / kManifestFile);
  for (const PruneResult& result : {plan_prune(storage, root(), 1), prune(storage, root(), 1)}) {
    ASSERT_EQ(result.kept.size(), 1u);
    EXPECT_EQ(result.kept[0].tag, "global_step1");
    EXPECT_THAT(result.kept[0].reason, HasSubstr("manifest.json is missing"));
    EXPECT_TRUE(result.removed.empty());
  }
}

/// Says when a checkpoint was committed.
void set_commit_time(const Path& tag, std::int64_t unix_seconds) {
  test::edit_manifest(tag, [&](Manifest& m) { m.saved_unix_seconds = unix_seconds; });
}

TEST_F(Retention, ARunThatWentBackKeepsWhatItSavedLast) {
  for (const std::int64_t step : {10, 20, 30, 40}) {
    test::write_example(root(), at_step(step), storage);
    set_commit_time(root() / ("global_step" + std::to_string(step)), 1'000'000 + step);
  }
  // Resumed from step 10: steps 12 and 14 are on the branch that goes on.
  CommitOptions options;
  options.keep_last = 2;
  test::write_example(root(), at_step(12), storage, options);
  EXPECT_EQ(names_in(root()),
            (std::vector<std::string>{"global_step12", "global_step40", "latest"}));
  test::write_example(root(), at_step(14), storage, options);
  EXPECT_EQ(names_in(root()),
            (std::vector<std::string>{"global_step12", "global_step14", "latest"}));
}

TEST_F(Retention, WhatWasJustSavedStaysWhateverTheClockSays) {
  for (const std::int64_t step : {1, 2}) {
    test::write_example(root(), at_step(step), storage);
    set_commit_time(root() / ("global_step" + std::to_string(step)), 9'000'000'000);
  }
  CommitOptions options;
  options.keep_last = 1;
  options.move_latest = false;
  test::write_example(root(), at_step(3), storage, options);
  EXPECT_NO_THROW(identity_of(root() / "global_step3"));
}

TEST_F(Retention, AClockThatGoesBackDoesNotChangeTheOrder) {
  for (const std::int64_t step : {1, 2, 3}) {
    test::write_example(root(), at_step(step), storage);
    set_commit_time(root() / ("global_step" + std::to_string(step)), 9'000'000'000 - step);
  }
  EXPECT_EQ(prune(storage, root(), 2).removed, std::vector<std::string>{"global_step1"});
  CommitOptions options;
  options.keep_last = 2;
  test::write_example(root(), at_step(4), storage, options);
  EXPECT_EQ(names_in(root()), (std::vector<std::string>{"global_step3", "global_step4", "latest"}));
}

TEST_F(Retention, SavesWithinOneSecondKeepTheirOrder) {
  for (const std::int64_t step : {10, 20, 30}) test::write_example(root(), at_step(step), storage);
  CommitOptions options;
  options.keep_last = 2;
  for (const std::int64_t step : {12, 14})  // resumed from step 10
    test::write_example(root(), at_step(step), storage, options);
  EXPECT_EQ(names_in(root()),
            (std::vector<std::string>{"global_step12", "global_step14", "latest"}));
}

TEST_F(Retention, CheckpointsWithoutANumberAreOlder) {
  for (const std::int64_t step : {1, 2}) {
    test::write_example(root(), at_step(step), storage);
    test::edit_manifest(root() / ("global_step" + std::to_string(step)), [&](Manifest& manifest) {
      manifest.commit_number = 0;  // as in a checkpoint that another program wrote
      manifest.saved_unix_seconds = 9'000'000'000 - step;
    });
  }
  test::write_example(root(), at_step(3), storage);
  const std::vector<TagEntry> tags = list_tags(storage, root());
  ASSERT_EQ(tags.size(), 3u);
  EXPECT_EQ(tags[0].tag, "global_step2");
  EXPECT_EQ(tags[2].tag, "global_step3");
  EXPECT_EQ(tags[2].commit_number, 1u);
}

TEST_F(Retention, AnOvertakenSaveLeavesLatestAndTheNewestAlone) {
  CommitOptions options, later;
  std::vector<std::string> sentences;
  options.warn = [&](const std::string& sentence) { sentences.push_back(sentence); };
  options.keep_last = later.keep_last = 1;
  later.commit_number = 2;
  options.on_step = [&](CommitStep step) {
    if (step == CommitStep::PublishTag) test::write_example(root(), at_step(2), storage, later);
  };
  test::write_example(root(), at_step(1), storage, options);
  EXPECT_EQ(names_in(root()), (std::vector<std::string>{"global_step1", "global_step2", "latest"}));
  EXPECT_EQ(read_latest(storage, root()), "global_step2");
  EXPECT_THAT(sentences, testing::Contains(HasSubstr("global_step1 was started before a save")));
  later.keep_last = 2;
  later.commit_number = 0;
  test::write_example(root(), at_step(3), storage, later);
  EXPECT_EQ(names_in(root()), (std::vector<std::string>{"global_step2", "global_step3", "latest"}));
}

/// Another process removes a folder just before it is listed.
class RemovedBeforeListing final : public test::FaultStorage {
 public:
  explicit RemovedBeforeListing(Path folder) : folder_(std::move(folder)) {}
  std::vector<Entry> list(const Path& directory) override {
    if (directory == folder_) posix_storage().remove_tree(folder_);
    return FaultStorage::list(directory);
  }

 private:
  Path folder_;
};

TEST_F(Retention, ACheckpointThatAnotherPrunerRemovesMeanwhileIsNoFailure) {
  for (const std::int64_t step : {1, 2}) test::write_example(root(), at_step(step), storage);
  RemovedBeforeListing racing(root() / "global_step1");
  PruneResult result;
  ASSERT_NO_THROW(result = prune(racing, root(), 1));
  EXPECT_TRUE(result.removed.empty());
  EXPECT_TRUE(result.kept.empty());
  EXPECT_EQ(names_in(root()), (std::vector<std::string>{"global_step2", "latest"}));
}

/// Waits a little before it looks at anything, so that others change what was seen before.
class Hesitant final : public test::FaultStorage {
 public:
  std::unique_ptr<File> open(const Path& path) override {
    wait();
    return FaultStorage::open(path);
  }
  EntryKind kind(const Path& path) override {
    wait();
    return FaultStorage::kind(path);
  }
  std::vector<Entry> list(const Path& directory) override {
    wait();
    return FaultStorage::list(directory);
  }
  void rename(const Path& from, const Path& to) override {
    wait();
    FaultStorage::rename(from, to);
  }

 private:
  static void wait() {
    thread_local std::minstd_rand random(std::random_device{}());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
  }
};

TEST_F(Retention, SavesAndManyPrunersDoNotFailEachOther) {
  Hesitant hesitant;
  std::atomic<bool> stop = false;
  std::vector<std::string> failures;
  std::mutex mutex;
  const auto note_failures = [&](const auto& job) {
    try {
      job();
    } catch (const std::exception& error) {
      const std::scoped_lock lock(mutex);
      failures.emplace_back(error.what());
    }
  };
  test::write_example(root(), at_step(1), storage);
  {
    std::vector<std::jthread> others;
    for (int i = 0; i < 3; ++i) {
      others.emplace_back([&] {
        while (!stop) note_failures([&] { prune(hesitant, root(), 1); });
      });
      others.emplace_back([&] {
        while (!stop) note_failures([&] { open_checkpoint(hesitant, root(), {}); });
      });
    }
    CommitOptions options;
    options.keep_last = 1;
    for (std::int64_t step = 2; step < 40; ++step)
      note_failures([&] { test::write_example(root(), at_step(step / 2), storage, options); });
    stop = true;
  }
  EXPECT_EQ(failures, std::vector<std::string>{});
}

}  // namespace
}  // namespace unishard
