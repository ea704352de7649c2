// Refusals and choices of `convert` and `prune` around what they write, in the real program.
#include "unishard/converters/registry.hpp"
#include "unishard/format/output_lock.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <algorithm>
#include <limits>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ConvertCommand : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return temp_.path() / name; }
  const TempDir temp_;
};

TEST_F(ConvertCommand, TheSuffixOfAFileTellsTheFormat) {
  write_example(path("run"));
  EXPECT_EQ(unishard({"convert", path("run"), path("x.npz"), "--weights-only"}).status, 0);
  EXPECT_EQ(report_of({"convert", path("x.npz"), path("x.safetensors")}).at("to"), "safetensors");
  const ProcessResult unclear = unishard({"convert", path("x.npz"), path("folder")});
  EXPECT_EQ(unclear.status, 2);
  EXPECT_THAT(unclear.err, HasSubstr("--to is required"));
}

TEST_F(ConvertCommand, OptionsThatChangeNothingAreTold) {
  write_example(path("run"));
  const auto remarks = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"convert", path("run"), path("out"), "--dry-run"});
    return report_of(options).at("remarks").dump();
  };
  EXPECT_THAT(remarks({"--to", "dcp", "--stage", "1"}),
              HasSubstr("--stage changes nothing: a checkpoint of the format dcp"));
  EXPECT_THAT(remarks({"--to", "trainer", "-w", "2"}), HasSubstr("--world-size changes nothing"));
  EXPECT_THAT(remarks({"--to", "native", "--part"}), HasSubstr("--part changes nothing"));
  EXPECT_THAT(remarks({"--to", "deepspeed", "--stage", "1", "-w", "2"}),
              testing::Not(HasSubstr("changes nothing")));
}

TEST_F(ConvertCommand, NumbersThatBecomeInfiniteAreNamed) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1e6F, 1, infinity, 2};  // "large" and "fits", two of each
  const std::string header = R"({"large":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                             R"("fits":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  write_file(path("in.safetensors"), bytes);
  const std::vector<std::string> words = {"convert", path("in.safetensors")};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return more;
  };
  const Json report = report_of(with({path("out.safetensors"), "--dtype", "fp16"}));
  EXPECT_EQ(report.at("overflowed"), Json::array({"large [weights]"}));
  EXPECT_EQ(report_of(with({path("wide.safetensors"), "--dtype", "bf16"})).at("overflowed"),
            Json::array());
  const ProcessResult strict =
      unishard(with({path("strict.safetensors"), "--dtype", "fp16", "--strict"}));
  EXPECT_EQ(strict.status, 6);
  EXPECT_THAT(strict.err, HasSubstr("became infinite: large"));
  EXPECT_FALSE(fs::exists(path("strict.safetensors")));
}

TEST_F(ConvertCommand, NamesOfUnfinishedOutputsAndLocksAreRefused) {
  write_example(path("run"));
  const std::string id(32, 'a');
  for (const std::string& name : {"x.partial-" + id, "x.removed-" + id, std::string(".x.lock")}) {
    EXPECT_EQ(unishard({"convert", path("run"), path(name), "--to", "dcp"}).status, 2) << name;
    EXPECT_EQ(unishard({"reshard", path("run"), path(name), "-w", "2"}).status, 2) << name;
  }
  EXPECT_EQ(unishard({"convert", path("run"), path("x../.."), "--to", "npz"}).status, 2);
  EXPECT_FALSE(fs::exists(path("x..")));
}

TEST_F(ConvertCommand, AModelWithBuffersBecomesAFolderOfPytorchModelBin) {
  Catalog catalog = example_catalog({});
  std::erase_if(catalog.tensors, [](const TensorInfo& tensor) {
    return tensor.state != state::kBuffer && tensor.state != state::kFp32;
  });
  catalog.units.clear();
  converters::Output output;
  output.format = "npz";
  output.path = path("model.npz");
  const auto sink = converters::make_sink(posix_storage(), output, catalog);
  for (std::size_t i = 0; i < sink->fragments().size(); ++i) {
    const Fragment& fragment = sink->fragments()[i];
    sink->write(i, fragment.range, example_bytes(catalog, fragment.tensor, 1, fragment.range));
  }
  sink->commit();
  const Json report = report_of({"convert", path("model.npz"), path("folder"), "--to", "torch"});
  EXPECT_THAT(report.at("remarks").dump(), HasSubstr("buffers and masters are weights"));
  EXPECT_EQ(report.at("different"), Json::array());
  EXPECT_EQ(report_of({"inspect", path("folder")}).at("tensors").size(), catalog.tensors.size());
}

TEST_F(ConvertCommand, PruneFailsWhenWhatIsToGoCannotBeRemoved) {
  for (const std::int64_t step : {1, 2, 3})
    write_example(path("run"), {.step = step, .tag = "global_step" + std::to_string(step)});
  {
    const OutputLock other =
        OutputLock::beside(posix_storage(), Path(path("run")) / "global_step1");
    const ProcessResult pruned = unishard({"prune", path("run"), "--keep-last", "1"});
    EXPECT_EQ(pruned.status, 3);
    EXPECT_THAT(pruned.out, HasSubstr("removed global_step2"));
    EXPECT_THAT(pruned.err, HasSubstr("1 checkpoints of " + path("run") + " could not be removed"));
    EXPECT_EQ(report_of({"prune", path("run"), "--keep-last", "1"}, 3).at("kept").size(), 1u);
  }
  EXPECT_EQ(unishard({"prune", path("run"), "--keep-last", "1"}).status, 0);
  EXPECT_FALSE(fs::exists(path("run/global_step1")));
}

}  // namespace
}  // namespace unishard::test
