// One flipped byte in the tensor data of a foreign checkpoint: no verb of the real program carries
// it into a result, and what is said about checksums is true.
#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kCorrupt = 4;
constexpr std::string_view kParameter = "h.1.attn.weight";

/// The bytes of the middle of a tensor, as every format stores them.
std::string middle_of(const CheckpointSpec& spec, std::string_view state) {
  constexpr std::uint64_t kElements = 8;
  const Catalog catalog = example_catalog(spec);
  const std::size_t tensor = *catalog.find(kParameter, state);
  const std::uint64_t at = catalog.tensors[tensor].elements() / 2;
  const auto bytes = example_bytes(catalog, tensor, spec.seed, {at, at + kElements});
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Flips a bit of the last file below `root` that holds `bytes`, and returns it: DeepSpeed's model
/// file comes first, and has copies that nothing reads.
fs::path flip_where(const fs::path& root, const std::string& bytes) {
  std::vector<fs::path> files;
  if (fs::is_regular_file(root)) files.push_back(root);
  if (fs::is_directory(root)) {
    for (const auto& entry : fs::recursive_directory_iterator(root))
      if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files, std::ranges::greater());
  for (const fs::path& file : files) {
    const std::size_t at = read_file(file).find(bytes);
    if (at == std::string::npos) continue;
    flip_bits(file, at + 5, 0x10);
    return file;
  }
  ADD_FAILURE() << "no file below " << root << " holds the tensor";
  return {};
}

/// Everything below a folder; an empty folder is nothing.
std::set<std::string> listing(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_directory() || !fs::is_empty(entry.path())) names.insert(entry.path());
  }
  return names;
}

struct Case {
  std::string name;
  std::string to;                      ///< --to
  std::string output;                  ///< what is converted to
  std::vector<std::string> more = {};  ///< options of `convert` that makes it
  std::string_view state = state::kFp32;
  bool is_sharded = true;  ///< reshard takes it
};

void PrintTo(const Case& chosen, std::ostream* out) { *out << chosen.name; }

std::vector<Case> cases() {
  std::vector<Case> all = {
      {.name = "Universal", .to = "deepspeed-universal", .output = "in"},
      {.name = "Dcp", .to = "dcp", .output = "in"},
      {.name = "TorchFile", .to = "torch", .output = "in.pt"},
      {.name = "TorchFolder",
       .to = "torch",
       .output = "in",
       .more = {"--weights-only"},
       .is_sharded = false},
      {.name = "Native", .to = "native", .output = "in"},
  };
  for (const char* stage : {"0", "1", "2", "3"}) {
    all.push_back({.name = std::string("DeepSpeedStage") + stage,
                   .to = "deepspeed",
                   .output = "in",
                   .more = {"--stage", stage}});
  }
  return all;
}

/// A checkpoint of the case, whole and as a damaged copy.
class KeptDamage : public testing::TestWithParam<Case> {
 protected:
  KeptDamage() {
    write_example(temp.path() / "example", spec);
    whole = temp.path() / "whole" / GetParam().output;
    std::vector<std::string> words = {"convert", temp.path() / "example", whole, "--to",
                                      GetParam().to};
    std::ranges::copy(GetParam().more, std::back_inserter(words));
    fs::create_directories(whole.parent_path());
    const ProcessResult made = unishard(words);
    EXPECT_EQ(made.status, 0) << made.err;
    fs::copy(temp.path() / "whole", temp.path() / "damaged", fs::copy_options::recursive);
    damaged = temp.path() / "damaged" / GetParam().output;
    file = flip_where(damaged, middle_of(spec, GetParam().state));
  }

  /// The verb ends with status 4, names the damaged file, and leaves nothing.
  void expect_refused(std::vector<std::string> words) const {
    const std::set<std::string> before = listing(temp.path());
    const ProcessResult result = unishard(words);
    SCOPED_TRACE(words[0] + ": " + result.out + result.err);
    EXPECT_EQ(result.status, kCorrupt);
    EXPECT_THAT(result.err, HasSubstr(file.filename().string()));
    EXPECT_THAT(result.out + result.err, Not(HasSubstr("equal")));
    EXPECT_EQ(listing(temp.path()), before);
  }

  const CheckpointSpec spec{.world_size = 2, .stage = 2, .scale = 4};
  TempDir temp;
  fs::path whole, damaged, file;
};

TEST_P(KeptDamage, IsRefusedByZeroToFp32) {
  expect_refused({"zero_to_fp32", damaged, temp.path() / "out.safetensors"});
}

TEST_P(KeptDamage, IsRefusedByConvert) {
  expect_refused({"convert", damaged, temp.path() / "out", "--to", "native"});
  expect_refused({"convert", damaged, temp.path() / "out", "--to", "native", "--no-check"});
  expect_refused({"convert", damaged, temp.path() / "out.safetensors", "--to", "safetensors",
                  "--weights-only", "--dtype", "bf16"});
}

TEST_P(KeptDamage, IsRefusedByReshard) {
  if (!GetParam().is_sharded) GTEST_SKIP() << "a model is not resharded";
  expect_refused({"reshard", damaged, temp.path() / "out", "-w", "3", "--to", "deepspeed"});
}

TEST_P(KeptDamage, IsRefusedByDiff) {
  if (GetParam().to == "native") GTEST_SKIP() << "decided by digests, without reading";
  expect_refused({"diff", damaged, whole});
}

TEST_P(KeptDamage, IsRefusedBySeveralProcesses) {
  expect_refused({"zero_to_fp32", damaged, temp.path() / "out.safetensors", "--procs", "3"});
  expect_refused(
      {"convert", damaged, temp.path() / "out", "--to", "dcp", "-w", "3", "--procs", "3"});
}

TEST_P(KeptDamage, LeavesNoFolderThatItMade) {
  const fs::path made = temp.path() / "made";
  expect_refused({"convert", damaged, made / "run", "--to", "native"});
  EXPECT_FALSE(fs::exists(made));
  expect_refused({"convert", damaged, made / "run", "--to", "dcp"});
  EXPECT_FALSE(fs::exists(made));
  expect_refused({"zero_to_fp32", damaged, made / "model" / "out.safetensors"});
  EXPECT_FALSE(fs::exists(made));
  fs::create_directory(made);
  expect_refused({"zero_to_fp32", damaged, made / "model" / "out.safetensors"});
  EXPECT_TRUE(fs::is_empty(made)) << "a folder that was there stays";
}

TEST_P(KeptDamage, WholeInputsPassAndSaySo) {
  const Json converted = report_of({"convert", whole, temp.path() / "out", "--to", "native"});
  EXPECT_EQ(converted["input_checked"], true);
  EXPECT_EQ(unishard({"diff", whole, temp.path() / "out"}).status, 0);
  const Json shared =
      report_of({"zero_to_fp32", whole, temp.path() / "out.safetensors", "--procs", "3"});
  EXPECT_EQ(shared["input_checked"], true);
}

TEST_P(KeptDamage, SalvageCopiesItAndMarksTheResult) {
  if (GetParam().to == "native") GTEST_SKIP() << "its reader always checks";
  const Json converted =
      report_of({"convert", damaged, temp.path() / "out", "--to", "native", "--no-check-input"});
  EXPECT_EQ(converted["input_checked"], false);
  std::string manifest;
  for (const auto& entry : fs::recursive_directory_iterator(temp.path() / "out"))
    if (entry.path().filename() == "manifest.json") manifest = read_file(entry.path());
  EXPECT_THAT(manifest, HasSubstr("\"unchecked_input\""));
  const ProcessResult said =
      unishard({"convert", damaged, temp.path() / "out2", "--to", "native", "--no-check-input"});
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_THAT(said.err, HasSubstr("--no-check-input"));
  EXPECT_THAT(said.err, Not(HasSubstr("equal")));
  const fs::path model = temp.path() / "out.safetensors";
  const Json fp32 = report_of({"zero_to_fp32", damaged, model, "--no-check-input"});
  EXPECT_EQ(fp32["input_checked"], false);
  EXPECT_THAT(read_file(model), HasSubstr("unishard.unchecked_input"));
}

INSTANTIATE_TEST_SUITE_P(Formats, KeptDamage, testing::ValuesIn(cases()),
                         [](const auto& chosen) { return chosen.param.name; });

/// A part of a checkpoint is copied, and the damage is in the same zip entry beside it.
TEST(KeptDamageBeside, IsRefusedWhereOnlyOneParameterIsTaken) {
  const TempDir temp;
  const CheckpointSpec spec{.world_size = 2, .stage = 2, .scale = 4};
  write_example(temp.path() / "example", spec);
  ASSERT_EQ(unishard({"convert", temp.path() / "example", temp.path() / "in", "--to", "deepspeed"})
                .status,
            0);
  const fs::path file = flip_where(temp.path() / "in", middle_of(spec, state::kFp32));
  const ProcessResult result = unishard({"convert", temp.path() / "in", temp.path() / "out", "--to",
                                         "native", "--only", "h.0.attn.weight"});
  const ProcessResult other = unishard({"convert", temp.path() / "in", temp.path() / "out2", "--to",
                                        "native", "--only", "wte.weight"});
  // The flat vectors are cut between ranks: at least one of the two shares an entry with it.
  EXPECT_EQ(std::max(result.status, other.status), kCorrupt) << result.err << other.err;
  EXPECT_THAT(result.err + other.err, HasSubstr(file.filename().string()));
}

/// DCP's `.metadata` has no checksum, but says every name more than once.
TEST(KeptDamageOfNames, OfDcpMetadataIsFoundAndNotCopied) {
  const TempDir temp;
  write_example(temp.path() / "example");
  const fs::path folder = temp.path() / "in";
  ASSERT_EQ(unishard({"convert", temp.path() / "example", folder, "--to", "dcp"}).status, 0);
  for (const std::string_view name : {"unishard.catalog", "model.wte.weight", "wte.weight"}) {
    const std::string stored = "X" + std::string(1, static_cast<char>(name.size())) +
                               std::string(3, '\0') + std::string(name);
    const std::size_t at = read_file(folder / ".metadata").find(stored);
    ASSERT_NE(at, std::string::npos) << name;
    flip_bits(folder / ".metadata", at + 8);
    const ProcessResult verified = unishard({"verify", folder});
    EXPECT_EQ(verified.status, 1) << name << verified.out << verified.err;
    EXPECT_THAT(verified.out, HasSubstr(".metadata"));
    for (const std::string to : {"native", "safetensors"}) {
      const ProcessResult copied =
          unishard({"convert", folder, temp.path() / ("out-" + to), "--to", to});
      EXPECT_EQ(copied.status, kCorrupt) << name << copied.err;
    }
    EXPECT_EQ(unishard({"zero_to_fp32", folder, temp.path() / "model"}).status, kCorrupt) << name;
    flip_bits(folder / ".metadata", at + 8);
  }
  EXPECT_EQ(unishard({"verify", "--deep", folder}).status, 0);
}

/// A control: formats without checksums carry damage along, and nothing else is claimed.
TEST(KeptDamageWithoutChecksums, IsNotCalledChecked) {
  const TempDir temp;
  write_example(temp.path() / "example");
  const fs::path model = temp.path() / "model.safetensors";
  ASSERT_EQ(unishard({"zero_to_fp32", temp.path() / "example", model}).status, 0);
  const Json report = report_of({"convert", model, temp.path() / "out", "--to", "native"});
  EXPECT_TRUE(report.at("input_checked").is_null()) << report;
  const ProcessResult said = unishard({"convert", model, temp.path() / "out2", "--to", "native"});
  EXPECT_THAT(said.err, HasSubstr("read back and equal; the input has no checksums")) << said.err;
}

}  // namespace
}  // namespace unishard::test
