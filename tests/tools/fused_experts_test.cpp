// What zero_to_fp32 and convert call the experts of a model that transformers 5 stacks in memory.
#include "unishard/format/json.hpp"
#include "unishard/format/storage.hpp"

#include "expect.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>

namespace unishard::test {
namespace {

using testing::Contains;
using testing::HasSubstr;

std::set<std::string> names_in(const Path& path) {
  const std::string file = read_file(path);
  std::uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  std::set<std::string> names;
  const Json header = parse_json(file.substr(sizeof size, size), path.string());
  for (const auto& [name, entry] : header.items()) names.insert(name);
  names.erase("__metadata__");
  return names;
}

TEST(FusedExperts, HaveTheNamesOfTheHubInAModel) {
  const TempDir temp;
  const Path folder = Path(UNISHARD_TEST_DATA) / "golden/trainer/mixtral";
  const std::set<std::string> files = names_in(folder / "model.safetensors");
  const std::string input = folder.string(), run = (temp.path() / "run").string();
  ASSERT_EQ(unishard({"convert", input, run, "--to", "deepspeed"}).status, 0);
  for (const std::string& from : {input, run}) {
    const std::string to = (temp.path() / Path(from).filename()).string() + "-model";
    const auto result = unishard({"zero_to_fp32", from, to});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("2 parameters of stacked experts become 6 tensors"));
    EXPECT_EQ(names_in(Path(to) / "model.safetensors"), files);
    const std::string bf16 = to + "-bf16";
    ASSERT_EQ(unishard({"convert", from, bf16, "--to", "safetensors", "--weights-only", "--dtype",
                        "bf16"})
                  .status,
              0);
    EXPECT_EQ(names_in(Path(bf16) / "model.safetensors"), files);
    const std::string module = to + "-module";
    ASSERT_EQ(unishard({"zero_to_fp32", from, module, "--module-names"}).status, 0);
    EXPECT_THAT(names_in(Path(module) / "model.safetensors"),
                Contains("model.layers.0.mlp.experts.gate_up_proj"));
  }
}

}  // namespace
}  // namespace unishard::test
