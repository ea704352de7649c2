// Checkpoints of nanotron 0.4, with values that the saving processes gathered themselves.
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include "containers/object_tree.hpp"
#include "containers/torch_file.hpp"
#include "expect.hpp"
#include "expected_tensors.hpp"
#include "fixtures.hpp"
#include "formats/dcp/nanotron_names.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::Fails;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const Path kGolden = Path(UNISHARD_TEST_DATA) / "golden/nanotron";
const std::string kDown = "model/model/decoder/1/pp_block/mlp/down_proj/";

std::unique_ptr<Source> open(const Path& path) { return open_source(posix_storage(), path); }

/// A copy of a golden run, to be damaged.
class Copied {
 public:
  explicit Copied(const std::string& name) { test::copy_folder(kGolden / name, run()); }
  Path run() const { return folder_.path() / "run"; }
  Path file(const std::string& name) const { return run() / "3" / name; }
  void swap(const std::string& one, const std::string& other) const {
    fs::rename(file(one), file("swapped"));
    fs::rename(file(other), file(one));
    fs::rename(file("swapped"), file(other));
  }

 private:
  const test::TempDir folder_;
};

std::string optimizer(int stage, int replica, int tensor) {
  return fmt::format("optimizer/optimizer_pp-{}-of-2_dp-{}-of-2_tp-{}-of-2_exp-0-of-1.pt", stage,
                     replica, tensor);
}

TEST(Nanotron, PartsOfAllRanksAreOneModel) {
  for (const char* name : {"tp2_fp32", "tp2_pp2_dp2_zero1_bf16", "ep2_fp32"}) {
    SCOPED_TRACE(name);
    const auto source = open(kGolden / name);
    EXPECT_GT(compare_tensors(*source, kGolden / (std::string(name) + ".safetensors")), 40u);
    EXPECT_EQ(source->catalog().step, 3u);
    EXPECT_EQ(source->catalog().groups.size(), 2u);
    EXPECT_FALSE(source->part_of());
  }
}

TEST(Nanotron, TiedHeadsHaveTheirName) {
  const auto source = open(kGolden / "tp2_pp2_dp2_zero1_bf16");
  EXPECT_EQ(source->catalog().world_size, 8u);
  ASSERT_EQ(source->catalog().aliases.size(), 1u);
  EXPECT_EQ(source->catalog().aliases[0].fqn, "model.lm_head.pp_block.weight");
  EXPECT_TRUE(open(kGolden / "tp2_fp32")->catalog().aliases.empty());
}

TEST(Nanotron, AStepIsATagOfItsRun) {
  OpenOptions options;
  options.tag = "3";
  EXPECT_NO_THROW(open_source(posix_storage(), kGolden / "tp2_fp32", options));
  EXPECT_NO_THROW(open(kGolden / "tp2_fp32/3"));
  options.tag = "4";
  EXPECT_THROW(open_source(posix_storage(), kGolden / "tp2_fp32", options), Error);
}

TEST(Nanotron, MissingFilesOfWeightsAreNamed) {
  const std::string part = kDown + "model_weight_pp-rank-0-of-1_tp-rank-1-of-2.safetensors";
  const Copied run("tp2_fp32");
  fs::remove(run.file(part));
  EXPECT_THAT(error_of([&] { open(run.run()); }),
              Fails(ErrorCode::Corrupt, "down_proj.weight\" the file of rank 1 is missing"));
  const Copied layer("tp2_fp32");
  fs::remove_all(layer.file("model/model/decoder/1"));
  EXPECT_THAT(error_of([&] { open(layer.run()); }),
              Fails(ErrorCode::Corrupt, "the first without files is layer 1"));
  const Copied norm("tp2_fp32");
  fs::remove(norm.file("model/model/decoder/1/pp_block/input_layernorm/model_weight.safetensors"));
  EXPECT_THAT(lines_of(open(norm.run())->losses()),
              Contains(HasSubstr("weight \"model.decoder.1.pp_block.input_layernorm.weight\"")));
}

TEST(Nanotron, SwappedFilesAreRefused) {
  const auto part = [](int rank) {
    return fmt::format("{}model_weight_pp-rank-0-of-1_tp-rank-{}-of-2.safetensors", kDown, rank);
  };
  const Copied weights("tp2_fp32");
  weights.swap(part(0), part(1));
  EXPECT_THAT(error_of([&] { open(weights.run()); }),
              Fails(ErrorCode::Corrupt, "one is in another's place"));
  const Copied states("tp2_pp2_dp2_zero1_bf16");
  states.swap(optimizer(0, 0, 0), optimizer(0, 1, 0));
  EXPECT_THAT(error_of([&] { open(states.run()); }), Fails(ErrorCode::Corrupt, "dp-1-of-2"));
}

TEST(Nanotron, AMissingFileOfTheOptimizerLeavesTheWeights) {
  const Copied run("tp2_pp2_dp2_zero1_bf16");
  fs::remove(run.file(optimizer(1, 0, 1)));
  const auto source = open(run.run());
  EXPECT_THAT(lines_of(source->losses()), Contains(HasSubstr("7 of 8 files are there")));
  EXPECT_TRUE(source->catalog().find("model.decoder.1.pp_block.mlp.down_proj.weight", "weights"));
}

TEST(Nanotron, AnOptimizerWithoutAnyFileIsALoss) {
  const Copied run("tp2_fp32");
  for (const auto& entry : fs::directory_iterator(run.file("optimizer")))
    if (entry.path().extension() == ".pt") fs::remove(entry.path());
  EXPECT_THAT(lines_of(open(run.run())->losses()), Contains(HasSubstr("no rank's file is there")));
}

TEST(Nanotron, ADamagedFileOfTheOptimizerLeavesTheWeights) {
  const Copied run("tp2_fp32");
  test::write_file(run.file("optimizer/optimizer_pp-0-of-1_tp-1-of-2_exp-0-of-1.pt"), "x");
  test::write_file(run.file("lr_scheduler/lr_scheduler_pp-0-of-1_tp-0-of-2_exp-0-of-1.pt"), "x");
  const auto source = open(run.run());
  EXPECT_THAT(lines_of(source->losses()), Contains(HasSubstr("float32 masters")));
  EXPECT_THAT(lines_of(source->losses()), Contains(HasSubstr("lr_scheduler")));
}

TEST(Nanotron, AnOptimizerOfAnotherSaveIsRefused) {
  const Copied run("tp2_pp2_dp2_zero1_bf16");
  for (const auto& entry : fs::recursive_directory_iterator(run.file("model"))) {
    if (!entry.is_regular_file()) continue;
    std::string bytes = test::read_file(entry.path());
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    for (std::size_t at = sizeof header + header; at < bytes.size(); ++at)
      bytes[at] = static_cast<char>(bytes[at] ^ 0x21);
    test::write_file(entry.path(), bytes);
  }
  EXPECT_THAT(error_of([&] { open(run.run()); }),
              Fails(ErrorCode::Corrupt, "the files are of another save"));
}

/// Changes what a file of the optimizer holds, and saves it again.
void change_object(const Path& path, const std::function<void(Json& object)>& change) {
  Json object;
  std::map<std::string, Made> tensors;
  {
    const torch::TorchFile file(torch::whole_file(posix_storage(), path));
    torch::ObjectTree tree = torch::describe(file.root(), fs::file_size(path));
    for (const torch::NamedTensor& named : tree.tensors) {
      const torch::TensorView view = file.tensor(named.value);
      Made made{view.dtype, view.shape, std::vector<float>(view.elements())};
      view.read({0, view.elements()}, std::as_writable_bytes(std::span(made.values)));
      tensors.emplace(named.name, std::move(made));
    }
    object = std::move(tree.content);
  }
  change(object);
  fs::remove(path);
  save_torch(path, object, tensors, path.stem());
}

/// Does so with all files of the optimizer.
void change_optimizer(const Copied& run, const std::function<void(Json& object)>& change) {
  for (const auto& entry : fs::directory_iterator(run.file("optimizer")))
    if (entry.path().extension() == ".pt") change_object(entry.path(), change);
}

TEST(Nanotron, ParametersThatLackTheirMastersAreNamed) {
  const std::string name = "model.decoder.1.pp_block.mlp.down_proj.weight";
  const Copied run("tp2_pp2_dp2_zero1_bf16");
  change_optimizer(run, [](Json& /*object*/) {});
  EXPECT_THAT(open(run.run())->remarks(), IsEmpty());
  change_optimizer(run, [&](Json& object) { object["gradient_accumulator"].erase(name); });
  EXPECT_THAT(open(run.run())->remarks(),
              ElementsAre(AllOf(HasSubstr("1 parameters"), HasSubstr(name),
                                HasSubstr("have no fp32 master"))));
}

TEST(Nanotron, KeysOfTheOptimizerThatAreNotReadAreNamed) {
  const Copied run("tp2_pp2_dp2_zero1_bf16");
  change_optimizer(run, [](Json& object) {
    object["accumulator"] = Json(object["gradient_accumulator"]);
    object.erase("gradient_accumulator");
  });
  const auto source = open(run.run());
  EXPECT_THAT(lines_of(source->losses()), Contains(HasSubstr("accumulator of ")));
  EXPECT_THAT(source->remarks(), ElementsAre(HasSubstr("keys that are not read: accumulator")));
}

TEST(Nanotron, WhatNothingTellsIsNoted) {
  const Copied run("tp2_fp32");
  fs::remove(run.file("model_config.json"));
  fs::remove_all(run.file("optimizer"));
  fs::remove_all(run.file("model/model/final_layer_norm"));
  const auto notes = open(run.run())->notes();
  EXPECT_THAT(notes, Contains(HasSubstr("does not say how many layers")));
  EXPECT_THAT(notes, Contains(HasSubstr("no file of the model holds a final_layer_norm")));
}

TEST(Nanotron, FoldersBehindLinksAreRead) {
  const Copied run("tp2_fp32");
  const Path norm = run.file("model/model/final_layer_norm"), moved = run.run() / "moved";
  fs::rename(norm, moved);
  fs::create_directory_symlink(moved, norm);
  EXPECT_GT(compare_tensors(*open(run.run()), kGolden / "tp2_fp32.safetensors"), 40u);
}

TEST(Nanotron, SlicesAndShapesAreChecked) {
  using namespace dcp::nanotron;
  const Shape local = {4, 3}, whole = {8, 3};
  const auto boxes =
      parse_slices("None,None,None|None,None,None#4,8,None|None,None,None", local, whole);
  ASSERT_EQ(boxes.size(), 1u);
  EXPECT_EQ(boxes[0].whole, (Box{{4, 0}, {4, 3}}));
  EXPECT_EQ(parse_slices("0,2,None|None,None,1#0,2,None|None,None,None;"
                         "2,4,None|None,None,None#4,6,None|0,3,None",
                         local, whole)
                .size(),
            2u);
  for (const char* text : {"", "#", "0,4,None#0,4,None", "0,4|None,None,None#0,4|None,None,None",
                           "-1,4,None|None,None,None#0,4,None|None,None,None",
                           "0,4,None|None,None,None#6,10,None|None,None,None",
                           "0,4,None|None,None,None#0,3,None|None,None,None",
                           "3,1,None|None,None,None#3,1,None|None,None,None"}) {
    EXPECT_THROW(parse_slices(text, local, whole), Error) << text;
  }
  EXPECT_THAT(
      error_of([&] { parse_slices("0,4,2|None,None,None#0,4,2|None,None,None", local, whole); }),
      Fails(ErrorCode::Unsupported, "steps"));
  EXPECT_EQ(parse_shape("(64, 32)"), (Shape{64, 32}));
  EXPECT_EQ(parse_shape("(np.int64(64), 32)"), (Shape{64, 32}));
  EXPECT_EQ(parse_shape("(7,)"), (Shape{7}));
  for (const char* text : {"", "64", "(a)", "(-1,)", "(99999999999999999999,)"})
    EXPECT_THROW(parse_shape(text), Error) << text;
  EXPECT_TRUE(parse_tensor_file("model_bias.safetensors"));
  EXPECT_FALSE(parse_tensor_file("model_bias_pp-rank-0-of-1_tp-rank-2-of-2.safetensors"));
  EXPECT_FALSE(parse_rank_file("optimizer", "optimizer_pp-0-of-1_pp-0-of-1.pt"));
}

}  // namespace
}  // namespace unishard::converters
