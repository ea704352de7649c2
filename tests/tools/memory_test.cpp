// --memory-limit is about the whole process: verbs that move a 1 GiB checkpoint stay below 64 MiB
// of resident memory.
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

namespace unishard::test {
namespace {

constexpr std::uint64_t kLimit = std::uint64_t{64} << 20;

class Memory : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    temp_ = std::make_unique<TempDir>();
    write_example(temp_->path() / "in", {.world_size = 4, .bf16 = true, .scale = 11500});
  }
  static void TearDownTestSuite() { temp_.reset(); }

  static void expect_bounded(std::vector<std::string> arguments, int status) {
    arguments.insert(arguments.end(), {"--memory-limit", "64MiB", "--threads", "8"});
    const ProcessResult result = unishard(arguments);
    EXPECT_EQ(result.status, status) << result.out << result.err;
    EXPECT_LT(result.peak_rss_bytes, kLimit) << arguments[0];
    RecordProperty("peak_rss_mib", static_cast<int>(result.peak_rss_bytes >> 20));
  }

  static std::string path(const char* name) { return temp_->path() / name; }
  static std::unique_ptr<TempDir> temp_;
};
std::unique_ptr<TempDir> Memory::temp_;

TEST_F(Memory, ZeroToFp32) {
  expect_bounded({"zero_to_fp32", path("in"), path("model.safetensors"), "--dtype", "bf16"}, 0);
  std::filesystem::remove(path("model.safetensors"));
}

TEST_F(Memory, Reshard) {
  expect_bounded({"reshard", path("in"), path("out"), "--world-size", "6"}, 0);
  std::filesystem::remove_all(path("out"));
}

TEST_F(Memory, ReshardCompressesAndReadsBack) {
  expect_bounded({"reshard", path("in"), path("small"), "-w", "5", "--compress", "zstd"}, 0);
  expect_bounded({"verify", path("small"), "--deep"}, 0);
  expect_bounded({"zero_to_fp32", path("small"), path("model.safetensors")}, 0);
  std::filesystem::remove(path("model.safetensors"));
  std::filesystem::remove_all(path("small"));
}

TEST_F(Memory, VerifyDeep) { expect_bounded({"verify", path("in"), "--deep"}, 0); }

TEST_F(Memory, Diff) {
  expect_bounded({"zero_to_fp32", path("in"), path("m")}, 0);
  expect_bounded({"diff", path("in"), path("m"), "--states", "fp32,weights"}, 0);
}

// Their tables take half of the limit: the buffers get what is left.
TEST_F(Memory, TwentyThousandTensors) {
  write_example(temp_->path() / "many", {.world_size = 4, .scale = 3, .layers = 2221});
  expect_bounded({"zero_to_fp32", path("many"), path("model.safetensors")}, 0);
  expect_bounded({"verify", path("many"), "--deep"}, 0);
  expect_bounded({"reshard", path("many"), path("out"), "-w", "3", "-s", "3"}, 0);
  std::filesystem::remove_all(path("out"));
}

}  // namespace
}  // namespace unishard::test
