// The table of layouts against the readers, the writers and the documents.
#include "unishard/converters/layouts.hpp"
#include "unishard/converters/registry.hpp"

#include "expect.hpp"
#include "fixtures.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using converters::Layout;
using testing::HasSubstr;

const fs::path kGolden = fs::path(UNISHARD_TEST_DATA) / "golden";

class FormatsCommand : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return temp_.path() / name; }

  /// Writes a golden model as `format`, where no real file of it is kept.
  std::string made(const std::string& format, const std::string& name) const {
    const ProcessResult result =
        unishard({"convert", kGolden / "meta/llama2.safetensors", path(name), "--to", format,
                  "--weights-only", "--dtype", "fp32"});
    EXPECT_EQ(result.status, 0) << result.err;
    return path(name);
  }
  std::string made_accelerate() const {
    const std::string model =
        fixtures() / "torch/hf_trainer_plain/checkpoint";  // states without copies in 16 bits
    const ProcessResult result = unishard({"convert", model, path("state"), "--to", "accelerate"});
    EXPECT_EQ(result.status, 0) << result.err;
    return path("state");
  }

  /// A real checkpoint of each layout, by what the table calls it.
  std::map<std::string, std::string> examples() const {
    const fs::path at = fixtures();
    const auto deepspeed = [&](const char* name) { return at / "deepspeed" / name / "checkpoint"; };
    const auto parallel = [&](const char* name) { return at / "parallel" / name / "checkpoint"; };
    return {
        {"a checkpoint of any world size and stage", kGolden / "v1"},
        {"ZeRO stages 1 and 2, data-parallel", deepspeed("stage2_w2")},
        {"ZeRO stage 3, data-parallel", deepspeed("stage3_w2")},
        {"stage 0", deepspeed("stage0_fp32")},
        {"tensor-parallel ranks (AutoTP, Megatron), which --tensor writes",
         parallel("autotp2_stage1_bf16")},
        {"a pipeline, which --pipeline writes", parallel("pp2_stage1_fp32")},
        {"experts (MoE), data-parallel", parallel("moe_ep2_stage1_bf16")},
        {"a universal checkpoint", deepspeed("universal_stage2")},
        {"a checkpoint of the Trainer", at / "torch/hf_trainer_plain/checkpoint"},
        {"a folder of save_state()", made_accelerate()},
        {"a model, in one file or in shards", at / "safetensors/hf_gpt2_sharded/checkpoint"},
        {"a model of torch.save, in one file or in shards",
         at / "safetensors/hf_pytorch_bin_sharded/checkpoint"},
        {"a distributed checkpoint (FSDP2, FSDP1, HSDP, DDP)",
         at / "torch/dcp_fsdp2_w2/checkpoint"},
        {"ranks of tensors, stages, experts and ZeRO-1", kGolden / "nanotron/tp2_fp32"},
        {"files of ranks, each saved by itself (verl, FSDP)",
         at / "public/verl_fsdp1_optimizer/input"},
        {"a file of torch.save: model, training, Lightning", kGolden / "torch/lightning.ckpt"},
        {"--ckpt-format torch_dist", parallel("mcore_tp2_pp2")},
        {"--ckpt-format torch: ranks of tensors and stages", kGolden / "megatron/gpt"},
        {"ranks of a Llama, weights only", kGolden / "meta/llama2"},
        {"one file of safetensors", kGolden / "meta/llama2.safetensors"},
        {"one file of h5py", made("hdf5", "m.h5")},
        {"one file of numpy", made("npz", "m.npz")},
        {"one file without quantization", made("gguf", "m.gguf")},
    };
  }

 private:
  const TempDir temp_;
};

TEST_F(FormatsCommand, ListsWhatInspectCallsByThisName) {
  SKIP_WITHOUT_FIXTURES();
  const Json listed = report_of({"formats"}).at("layouts");
  auto left = examples();
  ASSERT_EQ(listed.size(), converters::known_layouts().size());
  for (const Json& layout : listed) {
    const auto what = layout.at("what").get<std::string>();
    ASSERT_TRUE(left.contains(what)) << "no example of: " << what;
    EXPECT_EQ(report_of({"inspect", left.at(what)}).at("format"), layout.at("format")) << what;
    EXPECT_FALSE(layout.at("files").empty());
    left.erase(what);
  }
  EXPECT_TRUE(left.empty()) << left.begin()->first;
}

TEST_F(FormatsCommand, ListsEveryFormatThatIsReadOrWritten) {
  std::set<std::string_view> read, written;
  for (const Layout& layout : converters::known_layouts()) {
    read.insert(layout.format);
    if (!layout.written_as.empty()) written.insert(layout.written_as);
  }
  std::set<std::string_view> known;
  for (const converters::FormatEntry& entry : converters::known_formats()) known.insert(entry.name);
  EXPECT_EQ(read, known);
  EXPECT_EQ(written, known);
}

/// A file of each kind that one name or the first bytes show.
TEST_F(FormatsCommand, ListsWhatIsRefusedInTheWordsOfTheMessage) {
  const std::map<std::string, std::string> first_bytes = {
      {"git-lfs", "version https://git-lfs.github.com/spec/v1\n"},
      {"gzip", "\x1f\x8b\x08"},
      {"xz",
       "\xfd"
       "7zXZ"},
      {"zstd", "\x28\xb5\x2f\xfd"}};
  const Json refused_layouts = report_of({"formats"}).at("refused");
  int number = 0;
  for (const Json& refused : refused_layouts) {
    const auto name = refused.at("name").get<std::string>(),
               what = refused.at("what").get<std::string>();
    if (name == "parts") continue;
    for (const Json& files : refused.at("files").empty() ? Json{"file"} : refused.at("files")) {
      const fs::path folder = path(std::to_string(number++));
      fs::create_directory(folder);
      std::string file = files.get<std::string>();
      if (const std::size_t star = file.find('*'); star != file.npos) file.replace(star, 1, "m");
      const auto bytes = first_bytes.find(name);
      write_file(folder / file, bytes == first_bytes.end() ? "x" : bytes->second);
      // Some names are those of files, others of files in a folder.
      const std::string errors =
          unishard({"inspect", folder / file}).err + unishard({"inspect", folder}).err;
      EXPECT_THAT(errors, HasSubstr(what)) << file;
    }
  }
  EXPECT_GT(number, 20);
}

TEST_F(FormatsCommand, PartsThatNothingPutsTogetherAreRefused) {
  const std::map<std::string, std::vector<std::string>> files = {
      {"fairseq", {"checkpoint_1-shard0.pt", "checkpoint_1-shard1.pt"}},
      {"one for each rank", {"rank_0.pt", "rank_1.pt"}}};
  const Json refused_layouts = report_of({"formats"}).at("refused");
  std::size_t found = 0;
  for (const Json& refused : refused_layouts) {
    if (refused.at("name") != "parts") continue;
    const auto what = refused.at("what").get<std::string>();
    const auto example = std::ranges::find_if(
        files, [&](const auto& each) { return what.find(each.first) != what.npos; });
    ASSERT_NE(example, files.end()) << what;
    const fs::path folder = path(std::to_string(found++));
    for (const std::string& file : example->second) {
      fs::create_directories((folder / file).parent_path());
      write_file(folder / file, "x");
    }
    const ProcessResult result = unishard({"inspect", folder});
    EXPECT_EQ(result.status, 6);
    EXPECT_THAT(result.err, HasSubstr(what));
  }
  EXPECT_EQ(found, files.size());
}

/// The matrix of README.md and MAPPING.md name every family.
TEST_F(FormatsCommand, IsWhatTheDocumentsSay) {
  const fs::path root = fs::path(UNISHARD_TEST_DATA).parent_path();
  for (const char* document : {"README.md", "converters/MAPPING.md"}) {
    const std::string text = read_file(root / document);
    for (const Layout& layout : converters::known_layouts()) {
      const std::string family(layout.family.substr(0, layout.family.find(',')));
      const bool is_named = family == "single files" || text.find(family) != text.npos;
      EXPECT_TRUE(is_named) << document << ": " << family;
    }
  }
}

}  // namespace
}  // namespace unishard::test
