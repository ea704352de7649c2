// FSDP1's LOCAL_STATE_DICT with the names and shapes of another model.
#include "unishard/converters/like_source.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "expected_tensors.hpp"
#include "fixtures.hpp"
#include "formats/dcp/flat_places.hpp"
#include "rank_file_writer.hpp"
#include "read_source.hpp"
#include "temp_dir.hpp"
#include "write_example_file.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

namespace unishard::converters {
namespace {

using dcp::flat_places;
using dcp::FlatMember;
using dcp::FlatPiece;
using dcp::FlatVector;
using test::error_of;
using test::Fails;
using test::TempDir;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

using Named = std::vector<std::pair<std::string, Shape>>;

/// Writes a model of these float32 tensors, in their order.
Path save_like(const Path& file, const Named& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, shape] : tensors) infos.push_back(weight(name, DType::Float32, shape));
  write_example_file(file.extension() == ".safetensors" ? "safetensors" : "torch", file,
                     catalog_of(std::move(infos)));
  return file;
}

std::vector<float> floats(const Source& source, const std::string& fqn, std::string_view state) {
  auto found = source.catalog().find(fqn, state);
  if (!found && state == state::kWeights) found = source.catalog().find(fqn, state::kFp32);
  if (!found) return {};
  const auto bytes = read_all(source, *found);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<float> weights(const Source& source, const std::string& fqn) {
  return floats(source, fqn, state::kWeights);
}

/// Two ranks of a model of units, as fairscale and old versions of torch save it: "blocks.0" has
/// up.weight (1 to 4) and up.bias (5), the root first.weight (10 to 15), last.weight (20, 21). The
/// ranks' parts are filled up with zeros.
class FlatLike : public testing::Test {
 protected:
  void SetUp() override {
    save_rank(0, {1, 2, 3}, {10, 11, 12, 13});
    save_rank(1, {4, 5, 0}, {14, 15, 20, 21});
  }

  void save_rank(int rank, const std::vector<float>& block, const std::vector<float>& root) {
    RankFileWriter file;
    file.pickle.begin_dict();
    file.pickle.str("model");
    file.pickle.begin_ordered_dict();
    file.pickle.str("_fsdp_wrapped_module.flat_param_0");
    file.plain({root.size()}, root);
    file.pickle.str("_fsdp_wrapped_module._fpw_module.mean");
    file.plain({2}, {7, 8});
    file.pickle.str("_fsdp_wrapped_module._fpw_module.blocks.0._fsdp_wrapped_module.flat_param_0");
    file.plain({block.size()}, block);
    file.pickle.end_dict();
    file.pickle.str("optimizer");
    file.pickle.begin_dict();
    file.pickle.str("state");
    file.pickle.begin_dict();
    add_moments(file, 0, root);
    add_moments(file, 1, block);
    file.pickle.end_dict();
    file.one_group(2);
    file.pickle.end_dict();
    file.pickle.str("iteration");
    file.pickle.integer(5);
    file.pickle.end_dict();
    const Path path = folder() / fmt::format("model_5.rank_{}.pth", rank);
    std::filesystem::remove(path);
    file.write(path);
  }

  static void add_moments(RankFileWriter& file, int number, std::vector<float> values) {
    for (float& value : values) value *= 100;
    file.pickle.integer(number);
    file.pickle.begin_dict();
    file.pickle.str("step");
    file.plain({}, {5});
    file.pickle.str("exp_avg");
    file.plain({values.size()}, values);
    file.pickle.end_dict();
  }

  Path folder() const {
    std::filesystem::create_directories(temp_.path() / "run");
    return temp_.path() / "run";
  }
  Path like(const Named& tensors, const std::string& name = "like.pth") const {
    return save_like(temp_.path() / name, tensors);
  }
  std::unique_ptr<Source> open_like(const Path& model) const {
    return open_source_like(posix_storage(), folder(), model);
  }

  /// In the order of the module.
  const Named kModel = {{"mean", {2}},
                        {"first.weight", {2, 3}},
                        {"blocks.0.up.weight", {2, 2}},
                        {"blocks.0.up.bias", {1}},
                        {"last.weight", {2}}};

 private:
  const TempDir temp_;
};

TEST_F(FlatLike, VectorsOfRanksBecomeTheParametersOfTheirUnits) {
  const auto source = open_like(like(kModel));
  EXPECT_THAT(weights(*source, "first.weight"), ElementsAre(10, 11, 12, 13, 14, 15));
  EXPECT_THAT(weights(*source, "last.weight"), ElementsAre(20, 21));
  EXPECT_THAT(weights(*source, "blocks.0.up.weight"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(weights(*source, "blocks.0.up.bias"), ElementsAre(5));
  const TensorInfo& first = source->catalog().tensors.at(1);  // after the buffer, as in the module
  EXPECT_EQ(first.fqn, "first.weight");
  EXPECT_EQ(first.shape, (Shape{2, 3}));
  EXPECT_THAT(source->notes(), testing::Contains(HasSubstr("like.pth")));
}

TEST_F(FlatLike, StatesOfFlatParametersAreTakenApartInTheSameWay) {
  const auto source = open_like(like(kModel));
  const auto moment = [&](const std::string& fqn) { return floats(*source, fqn, "exp_avg"); };
  EXPECT_THAT(moment("first.weight"), ElementsAre(1000, 1100, 1200, 1300, 1400, 1500));
  EXPECT_THAT(moment("last.weight"), ElementsAre(2000, 2100));
  EXPECT_THAT(moment("blocks.0.up.weight"), ElementsAre(100, 200, 300, 400));
  EXPECT_THAT(moment("blocks.0.up.bias"), ElementsAre(500));
  EXPECT_EQ(source->catalog().step, 5);
}

TEST_F(FlatLike, StatesOfUnitsOfOneSizeNeedTheOrderOfTheModel) {
  save_rank(0, {1, 2, 3, 4}, {10, 11, 12, 13});
  save_rank(1, {5, 6, 7, 0}, {14, 15, 20, 21});
  Named model = kModel;
  model[3].second = {3};
  const Path file = like(model);
  const auto source = open_like(file);
  EXPECT_THAT(weights(*source, "blocks.0.up.bias"), ElementsAre(5, 6, 7));
  EXPECT_THAT(floats(*source, "blocks.0.up.bias", "exp_avg"), testing::IsEmpty());
  EXPECT_THAT(
      source->losses(),
      testing::Contains(AllOf(testing::Field(&Loss::role, Role::Optimizer),
                              testing::Field(&Loss::why, HasSubstr("--assume-model-order")))));
  const auto named =
      open_source_like(posix_storage(), folder(), file, {.assume_model_order = true});
  EXPECT_THAT(floats(*named, "blocks.0.up.bias", "exp_avg"), ElementsAre(500, 600, 700));
}

TEST_F(FlatLike, AModelOfOtherSizesIsRefusedWithBoth) {
  Named other = kModel;
  other[1].second = {2, 5};
  EXPECT_THAT(error_of([&] { open_like(like(other)); }),
              Fails(ErrorCode::Mismatch,
                    {"flat_param_0", "with 8 elements", "first.weight", "with 12", "like.pth"}));
  other = kModel;
  other.erase(other.begin() + 2, other.begin() + 4);
  EXPECT_THAT(error_of([&] { open_like(like(other, "other.pth")); }),
              Fails(ErrorCode::Mismatch, {"blocks.0", "no parameter"}));
}

TEST_F(FlatLike, AnOrderThatIsNotTheModulesIsRefused) {
  const std::string asked = "torch.save(model.state_dict()";
  EXPECT_THAT(error_of([&] { open_like(like(kModel, "like.safetensors")); }),
              Fails(ErrorCode::InvalidArgument, {"order", "safetensors"}, asked));
  Named sorted = kModel;
  std::ranges::sort(sorted);
  EXPECT_THAT(error_of([&] { open_like(like(sorted, "sorted.pth")); }),
              Fails(ErrorCode::InvalidArgument, {"its names are sorted"}, asked));
  Named mixed = kModel;  // as parameters by groups are: matrices before vectors
  std::swap(mixed[0], mixed[1]);
  std::swap(mixed[3], mixed[4]);
  EXPECT_THAT(error_of([&] { open_like(like(mixed, "mixed.pth")); }),
              Fails(ErrorCode::InvalidArgument, {"not in the order of any module"}, asked));
}

TEST_F(FlatLike, AWeightThatNoFileHasDoesNotFit) {
  Named more = kModel;
  more.insert(more.begin(), {"count", {3}});
  EXPECT_THAT(error_of([&] { open_like(like(more)); }), Fails(ErrorCode::Mismatch, "with 11"));
}

TEST_F(FlatLike, IsForFlatParametersOnly) {
  const Path model = like(kModel), other = like(kModel, "other.safetensors");
  EXPECT_THAT(error_of([&] { open_source_like(posix_storage(), other, model); }),
              Fails(ErrorCode::InvalidArgument, "safetensors", "leave --like out"));
}

TEST_F(FlatLike, WithoutAModelTheMessageAsksForOne) {
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder()); }),
              Fails(ErrorCode::Unsupported, testing::_, "--like"));
}

/// The module of the fixtures.
Named fixture_model(bool has_fixed) {
  Named model = {
      {"gate", {1}}, {"fixed", {6}}, {"scale", {}}, {"ids", {5}}, {"emb.weight", {13, 6}}};
  for (const auto& [name, shape] : Named{{"conv.weight", {6, 6, 3}},
                                         {"conv.bias", {6}},
                                         {"blocks.0.norm.weight", {6}},
                                         {"blocks.0.norm.bias", {6}},
                                         {"blocks.0.up.weight", {7, 6}},
                                         {"blocks.0.up.bias", {7}},
                                         {"blocks.0.down.weight", {6, 7}},
                                         {"bn.weight", {6}},
                                         {"bn.bias", {6}},
                                         {"bn.running_mean", {6}},
                                         {"bn.running_var", {6}},
                                         {"bn.num_batches_tracked", {}},
                                         {"head.weight", {13, 6}}})
    model.emplace_back(name, shape);
  if (!has_fixed) model.erase(model.begin() + 1);
  return model;
}

/// Compares the weights and buffers with those of the model that torch saved.
void expect_model(const Source& source, const Path& expected_file) {
  const auto expected = open_source(posix_storage(), expected_file);
  int compared = 0;
  for (std::size_t i = 0; i < expected->catalog().tensors.size(); ++i) {
    const std::string& label = expected->catalog().tensors[i].fqn;
    if (!label.ends_with("|weights") && !label.ends_with("|buffer")) continue;
    const std::string fqn = label.substr(0, label.rfind('|'));
    auto found = counterpart(source.catalog(), label);
    if (!found) found = source.catalog().find(fqn, state::kWeights);
    ASSERT_TRUE(found) << label;
    EXPECT_TRUE(read_all(source, *found) == read_all(*expected, i)) << label;
    ++compared;
  }
  EXPECT_GE(compared, 17);
}

/// Copies a rank's model without the optimizer beside it.
void copy_model(const Path& fixture, const char* rank, const Path& to) {
  std::filesystem::copy_file(fixture / "checkpoint" / fmt::format("model_rank{}.bin", rank), to);
}

TEST(FlatLikeFixtures, FlatParametersOfTorchGiveTheWeightsOfTheLiveModel) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir temp;
  const Path at = test::fixtures() / "torch/fsdp1_local_w2";
  for (const char* rank : {"0", "1"})
    copy_model(at, rank, temp.path() / fmt::format("model_rank{}.bin", rank));
  const Path like = save_like(temp.path() / "like.pt", fixture_model(false));
  expect_model(*open_source_like(posix_storage(), temp.path(), like), at / "expected.safetensors");
}

TEST(FlatLikeFixtures, FilesOfAnyNameAreKnownByTheirShardedTensors) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir temp, other;
  const Path at = test::fixtures() / "torch/fsdp1_local_w2";
  for (const char* rank : {"0", "1"})
    copy_model(at, rank, temp.path() / fmt::format("save_rank_{}.pt", rank));
  const Path like = save_like(other.path() / "like.pt", fixture_model(false));
  expect_model(*open_source_like(posix_storage(), temp.path(), like), at / "expected.safetensors");
}

TEST(FlatLikeFixtures, PiecesBesideFlatParametersTellTheOrder) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir temp;
  const Path at = test::fixtures() / "torch/fsdp1_local_orig_w3";
  Named model = fixture_model(true);
  std::ranges::sort(model);
  const Path like = save_like(temp.path() / "like.safetensors", model);
  const auto source = open_source_like(posix_storage(), at / "checkpoint", like);
  expect_model(*source, at / "expected.safetensors");
  std::vector<std::string> names;
  for (const TensorInfo& tensor : source->catalog().tensors) {
    if (std::ranges::find(names, tensor.fqn) == names.end()) names.push_back(tensor.fqn);
  }
  EXPECT_THAT(names.front(), "gate");
  EXPECT_THAT(names.back(), "head.weight");
}

TEST(FlatLikeFixtures, AWeightWithoutPiecesIsALoss) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir temp;
  Named model = fixture_model(true);
  model.emplace_back("other.weight", Shape{3});
  const auto source =
      open_source_like(posix_storage(), test::fixtures() / "torch/fsdp1_local_orig_w3/checkpoint",
                       save_like(temp.path() / "like.pt", model));
  EXPECT_THAT(source->losses(),
              testing::Contains(AllOf(testing::Field(&Loss::role, Role::Weight),
                                      testing::Field(&Loss::name, "other.weight"))));
}

TEST(FlatLikeFixtures, PiecesOfOtherSizesAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir temp;
  const Path at = test::fixtures() / "torch/fsdp1_local_orig_w3";
  Named model = fixture_model(true);
  model[0].second = {2};
  const Path like = save_like(temp.path() / "like.pt", model);
  EXPECT_THAT(error_of([&] { open_source_like(posix_storage(), at / "checkpoint", like); }),
              Fails(ErrorCode::Mismatch, {"303 elements", "gate"}));
}

TEST(FlatLikeFixtures, APieceOfOneRankIsNoParameter) {
  const TempDir temp;
  const Path at = Path(UNISHARD_TEST_DATA) / "golden/torch/fsdp1_local_dcp";
  const auto expected = open_source(posix_storage(), at / "expected.safetensors");
  Named model;  // in the order of the module
  const auto add = [&](const std::string& name) {
    const auto index = expected->catalog().find(name, state::kWeights);
    ASSERT_TRUE(index) << name;
    model.emplace_back(name, expected->catalog().tensors[*index].shape);
  };
  add("emb.weight");
  for (const char* block : {"layers.0.", "layers.1."})
    for (const char* name :
         {"ln.weight", "ln.bias", "up.weight", "up.bias", "down.weight", "bn.weight", "bn.bias"})
      add(std::string(block) + name);
  add("head.weight");
  const auto source = open_source_like(posix_storage(), at / "checkpoint",
                                       save_like(temp.path() / "like.pt", model));
  for (std::size_t i = 0; i < expected->catalog().tensors.size(); ++i) {
    const std::string& name = expected->catalog().tensors[i].fqn;
    const auto found = source->catalog().find(name, state::kWeights);
    ASSERT_TRUE(found) << name;
    EXPECT_TRUE(read_all(*source, *found) == read_all(*expected, i)) << name;
  }
  EXPECT_THAT(source->losses(), testing::IsEmpty());
}

// ---- places ----

TEST(FlatPlaces, MembersWithoutPiecesFillTheVectorWithoutGaps) {
  EXPECT_THAT(flat_places({{3}, {4}}, {.elements = 7, .ranks = 2}), Optional(ElementsAre(0, 3)));
  EXPECT_EQ(flat_places({{3}, {4}}, {.elements = 8, .ranks = 2}), std::nullopt);
  EXPECT_EQ(flat_places({{3}, {5}}, {.elements = 7, .ranks = 2}), std::nullopt);
  EXPECT_THAT(flat_places({{3}, {4}}, {.elements = 8, .is_filled = true, .ranks = 2}),
              Optional(ElementsAre(0, 3)));
  EXPECT_EQ(flat_places({{3}, {4}}, {.elements = 9, .is_filled = true, .ranks = 2}), std::nullopt);
}

/// Two parameters of 3 and 5 elements, the second behind a gap of one.
FlatVector two_parts() {
  return {.elements = 10, .ranks = 2, .parts = {{0, {0, 5}}, {1, {5, 10}}}};
}

TEST(FlatPlaces, GapsAreThoseThatThePiecesShow) {
  const FlatMember first{3, {{0, {3}}, {1, {0}}}};
  EXPECT_THAT(flat_places({first, {5, {{0, {1}}, {1, {4}}}}}, two_parts()),
              Optional(ElementsAre(0, 4)));
  EXPECT_EQ(flat_places({first, {5, {{0, {3}}, {1, {2}}}}}, two_parts()), std::nullopt);
  EXPECT_EQ(flat_places({{3, {{0, {2}}, {1, {1}}}}, {5, {{0, {1}}, {1, {4}}}}}, two_parts()),
            std::nullopt);
}

TEST(FlatPlaces, AVectorMayHaveGapsThatNoPieceShows) {
  EXPECT_EQ(flat_places({{3}, {5}}, {.elements = 10, .ranks = 2}), std::nullopt);
  EXPECT_THAT(flat_places({{3}, {5}}, {.elements = 10, .ranks = 2, .may_have_gaps = true}),
              Optional(ElementsAre(0, 4)));
}

TEST(FlatPlaces, TwoChoicesOfGapsAreNone) {
  // Gaps to 4 and to 8 elements put the second parameter at 4 or at 8 in the part of rank 0.
  FlatVector vector{.elements = 16, .ranks = 8, .parts = {{0, {0, 16}}}};
  const FlatMember first{3, {{0, {3}}}};
  FlatMember second{8, {{0, {8}}}};
  EXPECT_EQ(flat_places({first, second}, vector), std::nullopt);
  second.pieces[0].begin = 8;
  EXPECT_THAT(flat_places({first, second}, vector), Optional(ElementsAre(0, 8)));
  second.pieces[0].begin = 5;
  EXPECT_EQ(flat_places({first, second}, vector), std::nullopt);
}

}  // namespace
}  // namespace unishard::converters
