// Teams whose members are threads; processes that die are in team_command_test.cpp.
#include "team/team.hpp"

#include "unishard/converters/registry.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/launch_environment.hpp"

#include "expect.hpp"
#include "team/packed_texts.hpp"
#include "team/peer_watch.hpp"
#include "temp_dir.hpp"
#include "workflows/shared_output.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <map>
#include <thread>

namespace unishard::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::error_of;
using test::Fails;
using test::TempDir;
using test::thrown_by;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StrEq;

/// Calls member(rank) in one thread each; what a member throws is a failure of the test.
void together(std::uint32_t size, const std::function<void(std::uint32_t)>& member) {
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        member(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

class TeamTest : public testing::Test {
 protected:
  TeamOptions options(std::uint32_t rank, std::uint32_t size) const {
    return {.rank = rank, .size = size, .folder = folder_};
  }
  void put(const Path& name, std::string_view text) const {
    test::write_file(folder_ / name, text);
  }

  const TempDir temp_;
  const Path folder_ = temp_.path() / "team";
};

TEST(TeamAlone, HearsItselfAndKeepsItsErrors) {
  Team team;
  EXPECT_EQ(team.size(), 1u);
  EXPECT_EQ(team.gather("x"), std::vector<std::string>{"x"});
  EXPECT_THAT(error_of([&] {
                team.agree("trying", [] { raise(ErrorCode::NoSpace, "the disk is full"); });
              }),
              Fails(ErrorCode::NoSpace, StrEq("the disk is full")));
}

TEST_F(TeamTest, GatherGivesEverybodyAllTextsByRank) {
  together(4, [&](std::uint32_t rank) {
    Team team(options(rank, 4));
    const std::string odd("a\0\n\xff 12\n", 8);
    EXPECT_EQ(team.gather(odd + std::to_string(rank)),
              (std::vector<std::string>{odd + "0", odd + "1", odd + "2", odd + "3"}));
    EXPECT_EQ(team.gather(rank == 2 ? "" : "x"), (std::vector<std::string>{"x", "x", "", "x"}));
  });
  EXPECT_FALSE(std::filesystem::exists(folder_)) << "rank 0 removes it";
}

TEST_F(TeamTest, JobsOfOneNameFollowEachOtherWithoutAPause) {
  together(3, [&](std::uint32_t rank) {
    for (int job = 0; job < 20; ++job) {
      Team team(options(rank, 3));
      const std::string text = std::to_string(job);
      EXPECT_EQ(team.gather(text), std::vector<std::string>(3, text));
    }
  });
}

TEST_F(TeamTest, AFailureOnOneRankFailsAll) {
  together(3, [&](std::uint32_t rank) {
    const Error error = error_of([&] {
      Team team(options(rank, 3));
      team.agree("the job", [&] {
        team.agree("writing", [&] {
          if (rank == 1) raise(ErrorCode::NoSpace, "the disk is full");
        });
      });
    });
    EXPECT_THAT(error, rank == 1 ? Fails(ErrorCode::NoSpace, StrEq("the disk is full"))
                                 : Fails(ErrorCode::PeerFailed,
                                         StrEq("writing failed on rank 1: the disk is full")));
  });
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(TeamTest, PeersLearnTheCauseAndTheHint) {
  together(2, [&](std::uint32_t rank) {
    try {
      Team team(options(rank, 2));
      team.agree("reading", [&] {
        if (rank == 0) raise(ErrorCode::Corrupt, "bad \xff byte", "take another");
      });
      ADD_FAILURE() << "nothing was thrown on rank " << rank;
    } catch (const PeerError& error) {
      EXPECT_EQ(rank, 1u);
      EXPECT_EQ(error.cause(), ErrorCode::Corrupt);
      EXPECT_EQ(error.hint(), "take another");
    } catch (const Error&) {
      EXPECT_EQ(rank, 0u);
    }
  });
}

TEST_F(TeamTest, PeersLearnTheSignal) {
  together(2, [&](std::uint32_t rank) {
    TeamOptions wanted = options(rank, 2);
    wanted.stop_signal = [rank] { return rank == 0 ? SIGINT : SIGTERM; };
    try {
      Team team(wanted);
      team.agree("reading", [&] {
        if (rank == 0) raise(ErrorCode::Cancelled, "stopped on request");
      });
      ADD_FAILURE() << "nothing was thrown on rank " << rank;
    } catch (const PeerError& error) {
      EXPECT_EQ(error.cause(), ErrorCode::Cancelled);
      EXPECT_EQ(error.signal(), SIGINT);
    } catch (const Error&) {
      EXPECT_EQ(rank, 0u);
    }
  });
}

/// A result of one tensor that is complete and not published.
std::unique_ptr<converters::Sink> completed_sink(const Path& path) {
  Catalog catalog;
  TensorInfo& tensor = catalog.tensors.emplace_back();
  tensor.fqn = "w";
  tensor.state = state::kWeights;
  tensor.shape = {2};
  auto sink = converters::make_sink(posix_storage(),
                                    {.format = "safetensors", .path = path, .tag = {}}, catalog);
  const std::vector<std::byte> bytes(8);
  sink->write(0, {0, 2}, bytes);
  const std::string seal = sink->seal();
  sink->complete({&seal, 1});
  return sink;
}

TEST_F(TeamTest, APublishedResultOutlivesADeath) {
  const Path result = temp_.path() / "model.safetensors";
  const pid_t peer = ::fork();
  if (peer == 0) {
    Team team(options(1, 2));
    team.gather("");
    ::_exit(9);  // never comes to the publication
  }
  const std::jthread reaper([peer] { ::waitpid(peer, nullptr, 0); });
  Team team(options(0, 2));
  team.gather("");
  const auto sink = completed_sink(result);
  EXPECT_FALSE(std::filesystem::exists(result));
  EXPECT_NO_THROW(publish_together(team, *sink));
  EXPECT_TRUE(std::filesystem::exists(result));
  EXPECT_THAT(error_of([&] { team.gather(""); }), Fails(ErrorCode::PeerFailed, "rank 1"));
}

TEST_F(TeamTest, LongWorkLearnsOfAFailureMeanwhile) {
  together(3, [&](std::uint32_t rank) {
    const Error error = error_of([&] {
      Team team(options(rank, 3));
      team.agree("working", [&] {
        if (rank == 2) raise(ErrorCode::Io, "the disk is gone");
        for (;;) team.check();
      });
    });
    EXPECT_THAT(error, Fails(rank == 2 ? ErrorCode::Io : ErrorCode::PeerFailed));
  });
}

TEST_F(TeamTest, Rank0ThrowsWhenTheOthersHaveLetGo) {
  std::atomic<int> holding = 0;
  struct Held {
    std::atomic<int>& count;
    explicit Held(std::atomic<int>& counter) : count(counter) { ++count; }
    ~Held() { --count; }
  };
  together(3, [&](std::uint32_t rank) {
    error_of([&] {
      Team team(options(rank, 3));
      std::optional<Held> held;
      if (rank > 0) held.emplace(holding);
      team.gather("");
      try {
        team.agree("writing", [&] {
          if (rank == 0) raise(ErrorCode::Io, "the disk is gone");
        });
      } catch (const Error&) {
        if (rank == 0) {
          EXPECT_EQ(holding, 0);
        }
        throw;
      }
    });
  });
}

TEST_F(TeamTest, AStopOnRequestIsPutDownToTheFailureBeforeIt) {
  std::atomic<bool> stopped = false;
  together(2, [&](std::uint32_t rank) {
    TeamOptions mine = options(rank, 2);
    mine.check = [&] {
      if (stopped) raise(ErrorCode::Cancelled, "stopped on request");
    };
    const Error error = error_of([&] {
      Team team(mine);
      team.agree("writing", [&] {
        if (rank == 1) raise(ErrorCode::NoSpace, "the disk is full");
        std::optional<Error> failure;
        while (!failure || failure->code() != ErrorCode::PeerFailed)
          failure = thrown_by([&] { team.check(); });
        stopped = true;
        raise(ErrorCode::Cancelled, "stopped on request");
      });
    });
    EXPECT_STREQ(error.what(),
                 rank == 1 ? "the disk is full" : "writing failed on rank 1: the disk is full");
  });
}

TEST_F(TeamTest, WhatACrashedJobLeftIsPassedOver) {
  const std::string old(32, 'a'), session = "session-" + std::string(32, 'b');
  put("hello-1", old);
  put("hello-2", old);
  put("reply",
      R"({"session": ")" + session + R"(", "nonces": ["", ")" + old + R"(", ")" + old + R"("]})");
  for (const char* name : {"here-1", "here-2", "go", "failed-1", "left-2", "round-0"})
    put(Path(session) / name, "old");
  put(Path(session) / "round-0", "3\nold3\nold3\nold");
  together(3, [&](std::uint32_t rank) {
    Team team(options(rank, 3));
    EXPECT_EQ(team.gather("new"), std::vector<std::string>(3, "new"));
  });
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(TeamTest, NonsenseInTheFolderIsAnError) {
  put("reply", "{");
  TeamOptions mine = options(1, 2);
  mine.meet_limit = seconds(10);
  EXPECT_THAT(error_of([&] { Team team(mine); }), Fails(ErrorCode::Corrupt, "reply"));
}

TEST_F(TeamTest, WhoDoesNotComeIsNamed) {
  together(2, [&](std::uint32_t rank) {
    TeamOptions mine = options(rank, 3);
    mine.meet_limit = milliseconds(200);
    const std::vector<std::string> words =
        rank == 0 ? std::vector<std::string>{"waited 0.2 s for rank", "2 of 3"}
                  : std::vector<std::string>{"waited 0.2 s for rank 0 of 3"};
    EXPECT_THAT(error_of([&] { Team team(mine); }),
                Fails(ErrorCode::PeerFailed, words, "--procs 1"))
        << "rank " << rank;
  });
  EXPECT_FALSE(std::filesystem::exists(folder_)) << "the last one removes it";
}

TEST_F(TeamTest, WaitingCanBeStopped) {
  TeamOptions mine = options(0, 2);
  int looks = 0;
  mine.check = [&] {
    if (++looks == 3) raise(ErrorCode::Cancelled, "stopped on request");
  };
  EXPECT_THAT(error_of([&] { Team team(mine); }), Fails(ErrorCode::Cancelled));
}

TEST_F(TeamTest, ARemovedFolderIsAnErrorAndNoEndlessWait) {
  std::atomic<int> ready = 0;
  together(2, [&](std::uint32_t rank) {
    const Error error = error_of([&] {
      Team team(options(rank, 2));
      ++ready;
      while (ready < 2) std::this_thread::yield();
      if (rank == 1) {
        team.agree("waiting", [&] {
          while (std::filesystem::exists(folder_)) {  // a heart may beat into it meanwhile
            std::error_code ignored;
            std::filesystem::remove_all(folder_, ignored);
          }
        });
      } else {
        team.gather("");
      }
    });
    EXPECT_THAT(error, AnyOf(Fails(ErrorCode::Io), Fails(ErrorCode::NotFound)));
  });
}

class PeerWatchTest : public TeamTest {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_); }
  const TeamFolder files_{posix_storage(), folder_, "writer"};
};

TEST_F(PeerWatchTest, AProcessThatEndedIsDeadAtOnce) {
  const pid_t child = ::fork();
  if (child == 0) {
    PeerWatch(files_, 1, seconds(60)).beat();
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const auto death = PeerWatch(files_, 0, seconds(60)).look(1);
  ASSERT_TRUE(death.has_value());
  EXPECT_NE(death->find("rank 1 (process " + std::to_string(child)), std::string::npos) << *death;
}

TEST_F(PeerWatchTest, AProcessElsewhereIsDeadWhenItIsSilent) {
  test::write_file(folder_ / "alive-1", "1 1 another-machine");
  PeerWatch watch(files_, 0, milliseconds(100));
  EXPECT_FALSE(watch.look(1));
  std::optional<std::string> death;
  while (!death) death = watch.look(1);
  EXPECT_EQ(*death, "rank 1 has been silent for 0.1 s");
  test::write_file(folder_ / "alive-1", "1 2 another-machine");
  EXPECT_FALSE(watch.look(1)) << "it has beaten again";
}

TEST_F(PeerWatchTest, AProcessThatBeatsLives) {
  PeerWatch other(files_, 1, milliseconds(1)), watch(files_, 0, milliseconds(1));
  for (int i = 0; i < 10; ++i) {
    other.beat();
    EXPECT_FALSE(watch.look(1));
  }
}

TEST(PackedTexts, AreWhatTheyWere) {
  const std::vector<std::string> texts = {"", std::string("1\n\0", 3), "12345\n", "x"};
  EXPECT_EQ(unpack(pack(texts), 4, "here"), texts);
  for (const std::string_view bad :
       {"", "1\na", "1\na1\nb1\nc", "x", "5\nab", "-1\n", "1a", "99999999999999999999\na1\nb",
        "1\na18446744073709551615\nb"}) {
    EXPECT_THAT(error_of([&] { unpack(bad, 2, "here"); }), Fails(ErrorCode::Corrupt)) << bad;
  }
}

LaunchEnvironment job_in(const std::map<std::string, std::string>& variables) {
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  return read_launch_environment(lookup, "");
}

TEST(JobTest, IsWhatTheLauncherSays) {
  EXPECT_EQ(job_in({}).world_size, 1u);
  EXPECT_EQ(job_in({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "5"}}).world_size, 1u)
      << "a batch script";
  const LaunchEnvironment torchrun = job_in({{"RANK", "2"},
                                             {"WORLD_SIZE", "4"},
                                             {"LOCAL_WORLD_SIZE", "4"},
                                             {"TORCHELASTIC_RUN_ID", "abc"},
                                             {"MASTER_PORT", "29500"}});
  EXPECT_EQ(torchrun.rank, 2u);
  EXPECT_EQ(torchrun.world_size, 4u);
  EXPECT_TRUE(torchrun.one_host);
  const LaunchEnvironment mpirun = job_in({{"OMPI_COMM_WORLD_RANK", "1"},
                                           {"OMPI_COMM_WORLD_SIZE", "2"},
                                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                           {"PMIX_NAMESPACE", "77"}});
  EXPECT_EQ(mpirun.launcher, "openmpi");
  EXPECT_EQ(mpirun.rank, 1u);
  EXPECT_FALSE(mpirun.one_host);
  const std::map<std::string, std::string> srun = {{"SLURM_PROCID", "3"},
                                                   {"SLURM_STEP_NUM_TASKS", "8"},
                                                   {"SLURM_STEP_NUM_NODES", "1"},
                                                   {"SLURM_JOB_ID", "5"},
                                                   {"SLURM_STEP_ID", "0"}};
  auto next_step = srun;
  next_step["SLURM_STEP_ID"] = "1";
  EXPECT_EQ(job_in(srun).rank, 3u);
  EXPECT_TRUE(job_in(srun).one_host);
  EXPECT_NE(job_in(srun).id(), job_in(next_step).id());
}

TEST(JobTest, NonsenseIsRefusedWithTheVariable) {
  for (const std::map<std::string, std::string>& variables :
       std::vector<std::map<std::string, std::string>>{
           {{"RANK", "4"}, {"WORLD_SIZE", "4"}},
           {{"RANK", "0"}},
           {{"WORLD_SIZE", "2"}},
           {{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
           {{"RANK", "1x"}, {"WORLD_SIZE", "2"}},
           {{"RANK", ""}, {"WORLD_SIZE", "2"}},
           {{"RANK", "0"}, {"WORLD_SIZE", "99999999"}}}) {
    EXPECT_THAT(
        error_of([&] { job_in(variables); }),
        Fails(ErrorCode::InvalidArgument, AnyOf(HasSubstr("RANK"), HasSubstr("WORLD_SIZE"))));
  }
}

}  // namespace
}  // namespace unishard::tools
