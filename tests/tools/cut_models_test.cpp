// What zero_to_fp32 and convert make of models that Meta's programs and Megatron-LM cut.
#include "unishard/format/storage.hpp"

#include "expect.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace unishard::test {
namespace {

using testing::HasSubstr;

const Path kGolden = Path(UNISHARD_TEST_DATA) / "golden";

void expect_equal(const Path& model, const Path& expected) {
  const auto result = unishard({"diff", model.string(), expected.string()});
  EXPECT_EQ(result.status, 0) << result.out << result.err;
}

TEST(CutModels, OfMetaBecomeAModelOfTransformers) {
  const TempDir temp;
  for (const char* name : {"llama2", "llama3", "mistral"}) {
    const Path folder = kGolden / "meta" / name, model = temp.path() / name;
    const bool is_one_file = std::string(name) == "mistral";
    const Path input = is_one_file ? folder / "consolidated.00.pth" : folder;
    const auto result = unishard(
        {"zero_to_fp32", input.string(), model.string(), "--layout", "llama", "--dtype", "bf16"});
    ASSERT_EQ(result.status, 0) << result.err;
    expect_equal(model / "model.safetensors", folder.string() + ".safetensors");
    const std::string converted = model.string() + "-converted";
    ASSERT_EQ(unishard({"convert", input.string(), converted, "--to", "safetensors",
                        "--weights-only", "--layout", "llama"})
                  .status,
              0);
    expect_equal(Path(converted) / "model.safetensors", folder.string() + ".safetensors");
  }
}

TEST(CutModels, OfMetaNeedTheirParams) {
  const TempDir temp;
  const Path file = temp.path() / "consolidated.00.pth";
  std::filesystem::copy(kGolden / "meta/mistral/consolidated.00.pth", file);
  const std::string model = (temp.path() / "model").string();
  const auto result = unishard({"zero_to_fp32", file.string(), model, "--layout", "llama"});
  EXPECT_NE(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("params.json"));
}

TEST(CutModels, OfMegatronAreWhole) {
  const TempDir temp;
  for (const char* name : {"gpt", "llama"}) {
    const Path run = kGolden / "megatron" / name, model = temp.path() / name;
    const auto result = unishard({"zero_to_fp32", run.string(), model.string()});
    ASSERT_EQ(result.status, 0) << result.err;
    expect_equal(model / "model.safetensors", run.string() + ".safetensors");
    EXPECT_EQ(unishard({"verify", run.string(), "--deep"}).status, 0);
    EXPECT_EQ(unishard({"inspect", run.string()}).status, 0);
  }
}

}  // namespace
}  // namespace unishard::test
