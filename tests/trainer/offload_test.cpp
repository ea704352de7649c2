// Training whose state lives in files: the bits, the saves and the errors are those of training in
// memory. The resume matrix (matrix_test) covers every stage, world size and type.
#include "unishard/format/error.hpp"
#include "unishard/trainer/trace.hpp"

#include "expect.hpp"
#include "file_size_limit.hpp"
#include "open_file.hpp"
#include "process.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>

namespace unishard::test {
namespace {

using namespace trainer;
using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Config in_files(Config config, const Path& folder) {
  config.offload_optimizer.residence = Residence::File;
  config.offload_optimizer.nvme_path = folder.string();
  if (config.stage == 3) {
    config.offload_param.residence = Residence::File;
    config.offload_param.nvme_path = folder.string();
    config.offload_param.max_in_cpu = 0;
  }
  config.aio = {.block_size = 4096, .threads = 2};
  return config;
}

struct Job {
  std::uint32_t world;
  std::uint32_t stage;
  DType compute;
};

class Offload : public testing::TestWithParam<Job> {
 protected:
  Config config_ = small_config(GetParam().stage, GetParam().compute);
  TempDir files_, saves_;
};

/// Trains four steps and saves after the second, while training goes on. Returns the losses and the
/// identity of what was saved.
std::pair<std::vector<double>, std::string> train(std::uint32_t world, const Config& config,
                                                  const Path& folder, bool asynchronous) {
  std::pair<std::vector<double>, std::string> result;
  with_engine(world, config, {}, [&](Engine& engine, SmallModel& model, Communicator& group) {
    std::optional<SaveHandle> save;
    std::vector<double> losses;
    for (int done = 1; done <= 4; ++done) {
      losses.push_back(step(engine, model).loss);
      if (done == 2)
        save = engine.save_checkpoint({.folder = folder, .asynchronous = asynchronous});
    }
    const SaveReport report = save->wait();
    if (group.rank() == 0) result = {losses, report.identity};
  });
  return result;
}

TEST_P(Offload, HasTheLossesAndTheCheckpointsOfTrainingInMemory) {
  const std::uint32_t world = GetParam().world;
  const auto expected = train(world, config_, saves_.path() / "memory", false);
  const Config config = in_files(config_, files_.path());
  EXPECT_EQ(train(world, config, saves_.path() / "saved", false), expected);
  EXPECT_EQ(train(world, config, saves_.path() / "behind", true), expected);
  EXPECT_TRUE(std::filesystem::is_empty(files_.path()));
}

TEST_P(Offload, KeepsNothingInMemoryThatIsInFiles) {
  with_engine(GetParam().world, in_files(config_, files_.path()), {},
              [&](Engine& engine, SmallModel& model, Communicator&) {
                step(engine, model);
                const MemoryReport memory = engine.memory();
                EXPECT_EQ(memory.optimizer, 0);
                // At stage 1, gradients are added up on the rank before they are reduced.
                if (GetParam().stage > 1) {
                  EXPECT_EQ(memory.gradients, 0);
                }
                EXPECT_GT(memory.files, 0);
                EXPECT_EQ(memory.master, 0);
              });
}

TEST_P(Offload, APartOfTheUnitsMayStayInMemory) {
  const std::uint32_t world = GetParam().world;
  const auto expected = train(world, config_, saves_.path() / "memory", false);
  Config config = in_files(config_, files_.path());
  std::vector<MemoryReport> reports;
  for (const double ratio : {1.0, 0.5, 0.0}) {
    config.offload_optimizer.ratio = ratio;
    config.offload_param.max_in_cpu = ratio == 1 ? 0 : ratio == 0 ? 1'000'000 : 4'000;
    const Path folder = saves_.path() / fmt::format("{}", ratio);
    EXPECT_EQ(train(world, config, folder, true), expected);
    with_engine(world, config, {}, [&](Engine& engine, SmallModel&, Communicator& group) {
      if (group.rank() == 0) reports.push_back(engine.memory());
    });
  }
  EXPECT_EQ(reports[0].optimizer, 0);
  EXPECT_GT(reports[0].files, reports[1].files);
  EXPECT_GT(reports[1].files, 0);
  EXPECT_GT(reports[1].optimizer, 0);
  EXPECT_GT(reports[2].optimizer, reports[1].optimizer);
  EXPECT_EQ(reports[2].files, 0);
}

/// Its norms are those of whole parameters, of which a tile has a part.
TEST_P(Offload, HasTheBitsOfLambInMemory) {
  config_.optimizer = "Lamb";
  const auto expected = train(GetParam().world, config_, saves_.path() / "memory", false);
  EXPECT_EQ(
      train(GetParam().world, in_files(config_, files_.path()), saves_.path() / "files", false),
      expected);
}

/// Its matrices are whole only after their gradients, which are in files too, were gathered.
TEST_P(Offload, HasTheBitsOfMuonInMemory) {
  config_.optimizer = "Muon";
  config_.adam = config_.hyper;
  config_.hyper.momentum = 0.95;
  const auto expected = train(GetParam().world, config_, saves_.path() / "memory", false);
  Config config = in_files(config_, files_.path());
  EXPECT_EQ(train(GetParam().world, config, saves_.path() / "files", false), expected);
  config.offload_optimizer.residence = Residence::Host;
  EXPECT_EQ(train(GetParam().world, config, saves_.path() / "host", true), expected);
}

INSTANTIATE_TEST_SUITE_P(Jobs, Offload,
                         testing::Values(Job{1, 3, DType::BFloat16}, Job{2, 1, DType::Float32},
                                         Job{3, 2, DType::BFloat16}, Job{2, 3, DType::Float32},
                                         Job{2, 3, DType::Float16}),
                         [](const auto& each) {
                           return fmt::format("Stage{}{}On{}", each.param.stage,
                                              name_of(each.param.compute), each.param.world);
                         });

TEST(OffloadErrors, AGradientThatIsNotFiniteIsNamedAndChangesNothing) {
  TempDir files;
  with_engine(2, in_files(small_config(3), files.path()), {},
              [](Engine& engine, SmallModel& model, Communicator&) {
                step(engine, model);
                const Parameters before = parameters_of(engine, model);
                const Error error = error_of([&] {
                  engine.train_batch([&](const MicroBatch& batch) {
                    const at::Tensor loss = model->loss(batch);
                    return batch.id == 3 ? loss * kNan : loss;
                  });
                });
                EXPECT_THAT(error, Fails(ErrorCode::NotFinite));
                EXPECT_THAT(error.what(), HasSubstr("the gradient of in.weight (unit root)"));
                expect_equal(before, parameters_of(engine, model));
              });
}

/// The disk returns something else than what was written, in the middle of training.
TEST(OffloadErrors, ABlockThatTheDiskChangedEndsTheStep) {
  for (const bool ahead : {false, true}) {
    const TempDir files;
    Config config = in_files(small_config(3), files.path());
    config.offload_optimizer.super_offload = ahead;
    with_engine(1, config, {}, [&](Engine& engine, SmallModel& model, Communicator&) {
      step(engine, model);
      const Path path = path_of_open_file(files.path());
      ASSERT_FALSE(path.empty());
      const std::uint64_t bytes = posix_storage().open(path)->size();
      for (std::uint64_t at = 0; at < bytes; at += 4096) flip_bit(path, at, 0);
      const Error error = error_of([&] { step(engine, model); });
      EXPECT_THAT(error, Fails(ErrorCode::Corrupt, files.path().string(), HasSubstr("disk")));
    });
  }
}

TEST(OffloadErrors, StagesThatShardNothingHaveNothingToOffload) {
  TempDir files;
  const auto communicator = make_single_communicator();
  const auto refused = [&](Config config) {
    return error_of([&] { placement_for(config, *communicator); });
  };
  Config config = small_config(0);
  config.offload_optimizer.residence = Residence::Host;
  EXPECT_THAT(refused(config), Fails(ErrorCode::InvalidArgument));
  EXPECT_THAT(refused(config).what(), HasSubstr("offload_optimizer needs stage 1, 2 or 3"));
  config = small_config(2);
  config.offload_param.residence = Residence::Host;
  EXPECT_THAT(refused(config).what(), HasSubstr("offload_param needs stage 3"));
  config = in_files(small_config(3), "");
  EXPECT_THAT(refused(config).what(), HasSubstr("nvme_path"));
}

/// The files have all of their space before the first step.
TEST(OffloadErrors, AFullDiskIsNoticedBeforeTheFirstStep) {
  const TempDir files;
  const FileSizeLimit limit(64 * 1024);
  const Error error = error_of(
      [&] { with_engine(2, in_files(small_config(3), files.path()), {}, [](auto&&...) {}); });
  EXPECT_THAT(error, Fails(ErrorCode::NoSpace, files.path().string(), HasSubstr("ulimit -f")));
}

TEST(OffloadErrors, AFileSystemThatIsFullIsNoticedByEveryRankBeforeTheFirstStep) {
  const TempDir folder;
  const Path disk = folder.path() / "disk";
  std::filesystem::create_directory(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "mounting needs root: " << std::strerror(errno);
  const Error error =
      error_of([&] { with_engine(2, in_files(small_config(3), disk), {}, [](auto&&...) {}); });
  EXPECT_THAT(error, Fails(ErrorCode::NoSpace, disk.string(), HasSubstr("nvme_path")));
  EXPECT_TRUE(std::filesystem::is_empty(disk));
  EXPECT_EQ(::umount(disk.c_str()), 0) << "nothing is open";
}

TEST(OffloadTrace, ShowsWhatIsReadAndWrittenBesideTheUpdates) {
  const TempDir files;
  for (const bool ahead : {false, true}) {
    Trace trace;
    const auto runtime = make_host_runtime({.trace = &trace});
    Config config = in_files(small_config(3, DType::BFloat16), files.path());
    config.offload_optimizer.super_offload = ahead;
    config.gradient_clipping = 0;  // updates ahead of a step that is clipped may end unseen
    with_engine(1, config, {.runtime = runtime.get()},
                [&](Engine& engine, SmallModel& model, Communicator&) {
                  EXPECT_EQ(step(engine, model).units_ahead > 0, ahead);
                });
    std::map<std::string, int> spans;
    for (const Trace::Span& span : trace.spans()) {
      EXPECT_LE(span.begin, span.end);
      ++spans[span.stream + ": " + span.name.substr(0, span.name.find(' '))];
    }
    EXPECT_GT(spans["reads of files: read"], 0);
    EXPECT_GE(spans["writes of files: write"], spans["reads of files: read"]);
    EXPECT_EQ(spans["updates ahead: update"] > 0, ahead);
    EXPECT_TRUE(ahead || spans["compute: update"] > 0);
  }
}

/// An asynchronous save keeps the blocks of its state, for which it needs room.
TEST(OffloadErrors, ADiskThatIsFullLaterEndsTheSaveAndNotTheTraining) {
  const TempDir files, saves;
  Config config = in_files(small_config(3, DType::BFloat16), files.path());
  config.offload_optimizer.super_offload = false;
  const auto expected = train(1, small_config(3, DType::BFloat16), saves.path() / "a", false).first;
  std::vector<double> losses;
  with_engine(1, config, {}, [&](Engine& engine, SmallModel& model, Communicator&) {
    losses.push_back(step(engine, model).loss);
    {
      const FileSizeLimit limit(4096);
      const Error error = error_of([&] {
        engine.save_checkpoint({.folder = saves.path() / "b", .asynchronous = true}).wait();
      });
      EXPECT_THAT(error, Fails(ErrorCode::NoSpace));
    }
    while (losses.size() < expected.size()) losses.push_back(step(engine, model).loss);
  });
  EXPECT_EQ(losses, expected);
}

/// Runs the driver under a limit of its memory, in MiB beside the libraries.
std::string driven(const Path& folder, const char* stage, const char* optimizer,
                   const char* parameters, const char* limit) {
  const ProcessResult result = run({UNISHARD_TESTS_BIN "/offload_driver", folder.string(), stage,
                                    "24", "512", "3", optimizer, parameters, limit});
  EXPECT_EQ(result.status, 0) << result.err;
  return result.out;
}

std::string losses_in(const std::string& out) { return out.substr(0, out.find("parameters")); }

/// 76 M parameters: 910 MB of weights, masters and moments, and 303 MB of gradients.
TEST(OffloadMemory, AModelTrainsInAFractionOfItsState) {
  TempDir files;
  const std::string expected = driven(files.path(), "3", "none", "none", "0");
  ASSERT_THAT(expected, HasSubstr("parameters 75"));
  EXPECT_EQ(losses_in(driven(files.path(), "3", "nvme", "nvme", "128")), losses_in(expected));
  // The stacks of three more threads, and buffers beside the memory of the passes.
  EXPECT_EQ(losses_in(driven(files.path(), "3", "nvme-ahead", "nvme", "192")), losses_in(expected));
}

}  // namespace
}  // namespace unishard::test
