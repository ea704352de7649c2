// Configuration files of the kinds that people have, as train_gpt runs them.
#include "unishard/format/json.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "ranks.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace unishard::test {
namespace {

using testing::HasSubstr;

/// A folder with a text, and command lines for a small model.
class ConfigFiles : public testing::Test {
 protected:
  ConfigFiles() {
    std::string text;
    for (int line = 0; line < 400; ++line) text += fmt::format("line {} of a text\n", line);
    write_file(path("text"), text);
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::vector<std::string> command(const std::string& config,
                                   const std::vector<std::string>& more) const {
    write_file(path("ds.json"), config);
    std::vector<std::string> argv{UNISHARD_BIN "/train_gpt",
                                  "--config",
                                  path("ds.json"),
                                  "--data",
                                  path("text"),
                                  "--model",
                                  "nano",
                                  "--steps",
                                  "2"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  ProcessResult train(const std::string& config, const std::vector<std::string>& more = {}) const {
    return run(command(config, more));
  }
  /// Returns the losses that the last run wrote to the file "losses", to the last bit.
  std::string losses() const {
    std::ifstream file(path("losses"));
    std::string losses;
    for (std::string line; std::getline(file, line);)
      losses += Json::parse(line).at("loss").get<std::string>() + " ";
    EXPECT_NE(losses, "");
    std::filesystem::remove(path("losses"));
    return losses;
  }
  /// Trains alone and on 2 and 3 ranks at other stages, and expects the same losses.
  void expect_same_bits(const std::string& config) const;
  TempDir folder_;
};

constexpr const char* kOptimizerAndSchedule = R"(
  "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
           "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
  "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                            "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                               "warmup_num_steps": "auto"}},
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "wall_clock_breakdown": false)";

constexpr const char* kBuckets = R"("overlap_comm": true, "contiguous_gradients": true,
  "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
  "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
  "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true)";

std::string whole(const std::string& zero) {
  return fmt::format("{{{}, \"zero_optimization\": {{{}}}}}", kOptimizerAndSchedule, zero);
}

TEST_F(ConfigFiles, RunUnchangedAtEveryStageAndWithOffload) {
  const std::string nvme = fmt::format(R"("device": "nvme", "nvme_path": "{}")", path("nvme"));
  const std::string cpu = R"("device": "cpu", "pin_memory": true)";
  const auto offloaded = [](const std::string& where) {
    return whole(fmt::format(
        R"("stage": 3, "offload_optimizer": {{{}}}, "offload_param": {{{}}}, {},
           "aio": {{"block_size": 262144, "queue_depth": 32, "thread_count": 1}})",
        where, where, kBuckets));
  };
  const std::vector<std::string> files{
      whole(R"("stage": 1, "offload_optimizer": {"device": "none"})"),
      whole(fmt::format(R"("stage": 2, "allgather_partitions": true, "offload_optimizer": {{{}}})",
                        cpu)),
      offloaded(cpu), offloaded(nvme)};
  std::string expected;
  for (const std::string& file : files) {
    const ProcessResult result = train(file, {"--losses", path("losses")});
    EXPECT_EQ(result.status, 0) << file << result.err;
    const std::string found = losses();
    if (file == files.front()) expected = found;
    EXPECT_EQ(found, expected) << file;
    EXPECT_THAT(result.out, HasSubstr("train_micro_batch_size_per_gpu 8 (--micro-batch)"));
    EXPECT_THAT(result.out, HasSubstr("optimizer.params.lr 5e-05 (--lr)"));
  }
}

/// Memory that looks like a disk.
TEST_F(ConfigFiles, OffloadToAFolderThatIsNoDiskWorksAndIsSaid) {
  const TempDir memory("/dev/shm");
  const auto trained = [&](const std::string& offload) {
    const ProcessResult result =
        train(whole(fmt::format(R"("stage": 2{})", offload)), {"--losses", path("losses")});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(trained(""), Not(HasSubstr("direct I/O")));
  const std::string expected = losses();
  const std::string out = trained(fmt::format(
      R"(, "offload_optimizer": {{"device": "nvme", "nvme_path": "{}"}})", memory.path().string()));
  EXPECT_THAT(out, HasSubstr("nvme_path " + memory.path().string() +
                             ": its file system has no direct I/O, so it is no NVMe disk"));
  EXPECT_EQ(losses(), expected);
  EXPECT_TRUE(std::filesystem::is_empty(memory.path()));
}

/// The folder of the files is made when the first one is.
TEST_F(ConfigFiles, OffloadThatPutsNothingInFilesNeedsNoFolder) {
  const std::string missing = path("missing");
  const std::string nvme = fmt::format(R"("device": "nvme", "nvme_path": "{}")", missing);
  for (const std::string& offload :
       {fmt::format(R"("stage": 3, "offload_param": {{{}}})", nvme),
        fmt::format(R"("stage": 2, "offload_optimizer": {{{}, "ratio": 0}})", nvme)}) {
    const ProcessResult result = train(whole(offload), {});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_FALSE(std::filesystem::exists(missing));
  }
  const ProcessResult result = train(
      whole(fmt::format(R"("stage": 2, "offload_optimizer": {{{}}})", nvme)), {"--report-memory"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, testing::ContainsRegex("in files [0-9.]+ MB"));
}

TEST_F(ConfigFiles, TakeTheTrainersOptions) {
  const ProcessResult result =
      train(whole(R"("stage": 1)"), {"--per_device_train_batch_size", "2", "--accumulation", "3",
                                     "--learning_rate", "0.01", "--bf16", "--print-config"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("world size 1: batch 6 = 3 micro-batches of 2"));
  EXPECT_THAT(result.out, testing::ContainsRegex("optimizer.params.lr +0.01 +--lr"));
  EXPECT_THAT(result.out, testing::ContainsRegex("bf16.enabled +true +--bf16"));
  EXPECT_THAT(result.out, testing::ContainsRegex("zero_optimization.stage +1 +file"));
  EXPECT_THAT(result.out, testing::ContainsRegex("steps_per_print +2000 +file"));
}

TEST_F(ConfigFiles, RefuseAValueOfAnOption) {
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"--lr", "fast"}, {"--micro-batch", "0"}, {"--seed", "-1"}, {"--betas", "0.9"}}) {
    const ProcessResult result = train("{\"train_batch_size\": 2}", wrong);
    EXPECT_NE(result.status, 0) << wrong[0];
    EXPECT_THAT(result.err, HasSubstr(wrong[0]));
  }
}

/// Returns the losses of a run, in hexadecimal.
std::vector<std::string> losses_in(const std::string& log) {
  std::vector<std::string> losses;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);)
    losses.push_back(parse_json(line, log).at("loss").get<std::string>());
  return losses;
}

void ConfigFiles::expect_same_bits(const std::string& config) const {
  const auto losses = [&](const std::string& name, const char* stage, int world_size) {
    run_ranks(command(config, {"--steps", "5", "--stage", stage, "--losses", path(name)}),
              world_size);
    return losses_in(path(name));
  };
  const auto first = losses("a", "0", 1);
  EXPECT_EQ(first.size(), 5u);
  EXPECT_NE(first.front(), first.back());
  EXPECT_EQ(first, losses("b", "1", 2));
  EXPECT_EQ(first, losses("c", "3", 3));
}

TEST_F(ConfigFiles, LambHasTheSameBitsForEveryWorldSizeAndStage) {
  const std::string config = R"({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 1,
      "canonical_order": true, "optimizer": {"type": "Lamb", "params": {"lr": 0.01,
      "weight_decay": 0.01, "bias_correction": false, "max_coeff": 0.3, "min_coeff": 0.01}}})";
  expect_same_bits(config);
}

TEST_F(ConfigFiles, MuonHasTheSameBitsForEveryWorldSizeAndStage) {
  const std::string config = R"({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 1,
      "canonical_order": true, "bf16": {"enabled": true}, "optimizer": {"type": "Muon", "params": {
      "muon_lr": 0.02, "adam_lr": 0.003, "momentum": 0.9, "weight_decay": 0.01}}})";
  expect_same_bits(config);
}

TEST_F(ConfigFiles, AProfileThatCannotBeWrittenDoesNotEndTheTraining) {
  const auto with_file = [&](const std::string& file, int step) {
    return train(fmt::format(R"({{"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
        "flops_profiler": {{"enabled": true, "profile_step": {}, "output_file": "{}"}}}})",
                             step, file));
  };
  const ProcessResult nowhere = with_file(path("none/profile"), 1);
  EXPECT_EQ(nowhere.status, 3);
  EXPECT_THAT(nowhere.err, HasSubstr("flops_profiler.output_file: the folder"));
  EXPECT_THAT(nowhere.out, testing::Not(HasSubstr("step 1 "))) << "before the first step";
  const ProcessResult full = with_file("/dev/full", 1);
  EXPECT_EQ(full.status, 0) << full.err;
  EXPECT_THAT(full.err, HasSubstr("; training goes on"));
  const ProcessResult late = with_file(path("profile"), 50);
  EXPECT_EQ(late.status, 0);
  EXPECT_THAT(late.err, HasSubstr("the run ended before step 50"));
}

TEST_F(ConfigFiles, MonitorsWriteWhatDeepSpeedsMonitorsWrite) {
  const std::string config = fmt::format(
      R"({{"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
          "scheduler": {{"type": "WarmupLR", "params": {{"warmup_max_lr": 0.004,
              "warmup_type": "linear", "warmup_num_steps": 4}}}},
          "csv_monitor": {{"enabled": true, "output_path": "{0}", "job_name": "csv"}},
          "tensorboard": {{"enabled": true, "output_path": "{0}", "job_name": "tb"}}}})",
      path("monitors"));
  const ProcessResult result = train(config);
  ASSERT_EQ(result.status, 0) << result.err;
  std::ifstream table(path("monitors/csv/Train_Samples_lr.csv"));
  std::stringstream rows;
  rows << table.rdbuf();
  EXPECT_EQ(rows.str(), "step,lr\n4,0\n8,0.001\n")
      << "DeepSpeed writes the rate that the scheduler has set for the next step";
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("monitors/tb"))) {
    ++files;
    EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("events.out.tfevents."));
    EXPECT_GT(entry.file_size(), 200u);
  }
  EXPECT_EQ(files, 1u);
}

}  // namespace
}  // namespace unishard::test
