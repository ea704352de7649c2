// The real `safetensors` library reads what we write.
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace unishard::test {
namespace {

const char* kScript = R"(
import json, sys
from safetensors import safe_open
folder = sys.argv[1]
index = json.load(open(folder + "/model.safetensors.index.json"))
total = 0
for name, file in index["weight_map"].items():
    with safe_open(folder + "/" + file, framework="numpy") as f:
        assert f.metadata()["format"] == "pt"
        tensor = f.get_tensor(name)
        total += tensor.nbytes
assert total == index["metadata"]["total_size"], total
with safe_open(folder + "/" + index["weight_map"]["wte.weight"], framework="numpy") as f:
    print(repr(float(f.get_tensor("wte.weight")[1, 2])))
)";

TEST(Interop, SafetensorsLibraryLoadsAConsolidatedFolder) {
  if (run({"python3", "-c", "import safetensors, numpy"}).status != 0) {
    GTEST_SKIP() << "python3 has no safetensors and numpy";
  }
  const TempDir temp;
  const Path tag = write_example(temp.path() / "in");
  const std::string out = temp.path() / "out";
  // numpy has no bfloat16, so the frozen parameter is made float32 too.
  ASSERT_EQ(
      unishard({"zero_to_fp32", tag, out, "--max_shard_size", "10KB", "--dtype", "fp32"}).status,
      0);
  const ProcessResult result = run({"python3", "-c", kScript, out});
  ASSERT_EQ(result.status, 0) << result.err;
  const Catalog catalog = example_catalog({});
  const auto bytes = example_bytes(catalog, *catalog.find("wte.weight", "fp32"), 1);
  float expected = 0;
  std::memcpy(&expected, bytes.data() + 4 * (32 + 2), sizeof expected);
  EXPECT_EQ(std::stof(result.out), expected);
}

}  // namespace
}  // namespace unishard::test
