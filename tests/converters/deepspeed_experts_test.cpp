// Regular checkpoints of mixtures of experts, read whole and compared bit by bit with what the
// ranks had in memory; what is refused of them.
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/pickle_json.hpp"
#include "copied_run.hpp"
#include "expect.hpp"
#include "expected_tensors.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
namespace fs = std::filesystem;

const std::vector<std::string> kExperts = {"moe_ep1_stage2_fp32",
                                           "moe_ep2_stage0_bf16",
                                           "moe_ep2_stage0_fp32",
                                           "moe_ep2_stage1_bf16",
                                           "moe_ep2_stage2_fp32_two_layers",
                                           "moe_ep2dp4_stage1_fp32_data_first",
                                           "moe_ep2dp4_stage2_bf16",
                                           "moe_ep4_and_ep2_stage2_fp32_groups"};

TEST(DeepSpeedExperts, EveryFixtureGivesTheBitsOfTheWholeModel) {
  SKIP_WITHOUT_FIXTURES();
  std::size_t tensors = 0;
  for (const std::string& name : kExperts) {
    SCOPED_TRACE(name);
    const auto source = open_case(name);
    tensors += compare_tensors(*source, parallel_case(name) / "expected.safetensors");
    const Catalog& catalog = source->catalog();
    const SortedJson about = about_case(name);
    expect_counts(catalog, about);
    EXPECT_EQ(catalog.groups.size(), about["param_groups"].size());
    EXPECT_TRUE(source->losses().empty()) << text_of(source->losses().front());
    EXPECT_THAT(source->notes(), testing::IsEmpty());
  }
  EXPECT_EQ(tensors, 1042u);
}

std::string expert_file(int layer, int expert) {
  return fmt::format("layer_{}_expert_{}_mp_rank_00_model_states.pt", layer, expert);
}

/// The groups have the experts of all ranks, layer by layer as the model has them.
TEST(DeepSpeedExperts, GroupsListTheExpertsInTheModelsOrder) {
  SKIP_WITHOUT_FIXTURES();
  for (const std::string name : {"moe_ep2_stage2_fp32_two_layers", "moe_ep2_stage0_fp32"}) {
    SCOPED_TRACE(name);
    const auto source = open_case(name);
    std::vector<std::string> wanted, found;
    const int layers = name == "moe_ep2_stage0_fp32" ? 1 : 2;
    for (int layer = 0; layer < layers; ++layer) {
      for (int expert = 0; expert < (layer == 0 ? 4 : 2); ++expert) {
        for (const char* local : {"up.weight", "up.bias", "down.weight"})
          wanted.push_back(fmt::format("moes.{}.deepspeed_moe.experts.deepspeed_experts.{}.{}",
                                       layer, expert, local));
      }
    }
    for (const Json& fqn : source->catalog().groups[1]["params"]) found.push_back(fqn);
    EXPECT_EQ(found, wanted);
  }
}

TEST(DeepSpeedExperts, AMissingDoubledOrStrayFileIsNamed) {
  SKIP_WITHOUT_FIXTURES();
  const std::string two = "moe_ep2_stage2_fp32_two_layers", zero = "moe_ep2_stage0_fp32";
  struct Case {
    std::string fixture, removed, copied_from, copied_to;
    std::vector<std::string> words;
  };
  const std::string optimizer = "zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const std::string states = "expp_rank_1_mp_rank_00_optim_states.pt";
  const std::vector<Case> cases = {
      {two, expert_file(0, 1), "", "", {expert_file(0, 1), "missing", "lost"}},
      {two, expert_file(1, 1), "", "", {expert_file(1, 1), "missing"}},
      {two, expert_file(1, 0), "", "", {expert_file(1, 0), "missing"}},
      {two, "", expert_file(0, 3), expert_file(0, 4), {expert_file(0, 4), "another save"}},
      {two, "", expert_file(1, 0), expert_file(2, 0), {expert_file(2, 0), "another save"}},
      {two, expert_file(0, 1), expert_file(0, 0), expert_file(0, 1), {"written as"}},
      {two, optimizer, "", "", {"optimizer files of rank 1 are missing"}},
      {two, "mp_rank_00_model_states.pt", "", "", {"mp_rank_00_model_states.pt is missing"}},
      {zero, states, "", "", {"optimizer files of rank 1 are missing", "ep_size_N"}},
      {zero, states, "expp_rank_0_mp_rank_00_optim_states.pt", states, {"written as"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.fixture + ", removed " + c.removed + ", made " + c.copied_to);
    const CopiedRun copy(c.fixture);
    if (!c.removed.empty()) {
      ASSERT_TRUE(fs::remove(copy.file(c.removed)));
    }
    if (!c.copied_to.empty()) fs::copy_file(copy.file(c.copied_from), copy.file(c.copied_to));
    const Error error = error_of([&] { copy.open(); });
    EXPECT_EQ(error.code(), ErrorCode::Corrupt);
    for (const std::string& word : c.words) EXPECT_THAT(error.what(), testing::HasSubstr(word));
  }
}

TEST(DeepSpeedExperts, AnExpertOfStage0IsOnTheRankThatHasItsStates) {
  SKIP_WITHOUT_FIXTURES();
  const auto source = open_case("moe_ep2_stage0_fp32");
  for (const std::string expert : {"0", "1", "2", "3"}) {
    const std::string name =
        "moes.0.deepspeed_moe.experts.deepspeed_experts." + expert + ".up.weight";
    std::set<std::uint32_t> ranks;
    for (const std::string_view kind : {state::kFp32, state::kExpAvg}) {
      for (const StoredRange& range :
           source->stored_ranges(source->catalog().find(name, kind).value()))
        ranks.insert(range.rank);
    }
    EXPECT_EQ(ranks, (std::set<std::uint32_t>{expert < "2" ? 0u : 1u})) << name;
  }
}

/// The archives tell the ranks unless a program has saved the files again.
TEST(DeepSpeedExperts, StatesOfAnotherExpertRankAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const std::string zero = "expp_rank_0_mp_rank_00_optim_states.pt",
                    one = "expp_rank_1_mp_rank_00_optim_states.pt";
  const CopiedRun swapped("moe_ep2_stage0_fp32");
  swapped.swap(zero, one);
  swapped.rename_archive(zero, one);
  swapped.rename_archive(one, zero);
  EXPECT_THAT(
      error_of([&] { swapped.open(); }),
      Fails(ErrorCode::Corrupt, {zero, "mp_rank_00_model_states.pt", "the states of moes"}));
  const CopiedRun copied("moe_ep2_stage0_fp32");
  fs::copy_file(copied.file(zero), copied.file(one), fs::copy_options::overwrite_existing);
  copied.rename_archive(one, zero);
  EXPECT_THAT(error_of([&] { copied.open(); }),
              Fails(ErrorCode::Corrupt, {zero, one, "is a copy of the other"}));
}

Made filled(const Shape& shape) {
  return {DType::Float32, shape, std::vector<float>(element_count(shape), 0.5f)};
}

/// A file of expert `expert` with the values of `from`, under the names of `expert`.
void write_expert(const CopiedRun& run, const Source& source, int expert, int from) {
  const std::string prefix = "moes.0.deepspeed_moe.experts.deepspeed_experts.";
  Json object = Json::object();
  std::map<std::string, Made> tensors;
  for (const std::string local : {".up.weight", ".up.bias", ".down.weight"}) {
    const std::string name = prefix + std::to_string(expert) + local;
    const auto other =
        counterpart(source.catalog(), prefix + std::to_string(from) + local + "|weights").value();
    const std::vector<std::byte> bytes = read_all(source, other);
    Made made{DType::Float32, source.catalog().tensors[other].shape,
              std::vector<float>(bytes.size() / sizeof(float))};
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(made.values)).begin());
    object[name] = tensor(name);
    tensors[name] = std::move(made);
  }
  std::filesystem::remove(run.file(expert_file(0, expert)));
  save_torch(run.file(expert_file(0, expert)), object, tensors);
}

/// The experts of a layer are copies of one module. Stage 0 tells no shapes beside the files; the
/// others have those of the optimizer in the place of a weight that a file lacks.
TEST(DeepSpeedExperts, ExpertsOfOneLayerHaveTheSameTensors) {
  SKIP_WITHOUT_FIXTURES();
  const std::string name = "moes.0.deepspeed_moe.experts.deepspeed_experts.2.up.weight";
  struct Case {
    std::string written;  ///< instead of `name`; nothing when empty
    Shape shape;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {name, {5, 12}, {"(5, 12)", "(10, 12)"}},
      {name, {120}, {"(120)", "(10, 12)"}},
      {name + "x", {10, 12}, {"has no \"up.weight\""}},
      {"", {}, {"has no \"up.weight\""}},
  };
  for (const std::string fixture : {"moe_ep2_stage0_fp32", "moe_ep2_stage2_fp32_two_layers"}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(fixture + ": " + c.written);
      const CopiedRun copy(fixture);
      const std::string prefix = name.substr(0, name.find("up.weight"));
      Json object = {{prefix + "up.bias", tensor("bias")},
                     {prefix + "down.weight", tensor("down")}};
      std::map<std::string, Made> tensors = {{"bias", filled({10})}, {"down", filled({12, 10})}};
      if (!c.written.empty()) {
        object[c.written] = tensor("up");
        tensors["up"] = filled(c.shape);
      }
      fs::remove(copy.file(expert_file(0, 2)));
      save_torch(copy.file(expert_file(0, 2)), object, tensors);
      const Error error = error_of([&] { copy.open(); });
      EXPECT_THAT(error, Fails(ErrorCode::Corrupt, {expert_file(0, 2), "same tensors"}));
      EXPECT_THAT(error, Fails(ErrorCode::Corrupt, c.words));
    }
  }
}

TEST(DeepSpeedExperts, ExpertsThatAreNotWhatTheOptimizerSaysAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  for (const std::string name : {"moe_ep1_stage2_fp32", "moe_ep2dp4_stage1_fp32_data_first",
                                 "moe_ep2_stage2_fp32_two_layers"}) {
    SCOPED_TRACE(name);
    const CopiedRun copy(name);
    {
      const auto source = open_case(name);
      const int experts = name == "moe_ep1_stage2_fp32" ? 3 : 4;
      for (int expert = 0; expert < experts; ++expert) write_expert(copy, *source, expert, expert);
      EXPECT_NO_THROW(copy.open());
      write_expert(copy, *source, 1, 2);
      write_expert(copy, *source, 2, 1);
    }
    EXPECT_THAT(error_of([&] { copy.open(); }),
                Fails(ErrorCode::Corrupt,
                      {expert_file(0, 1), "fp32 copy rounds to", "deepspeed_experts.1.up.weight"}));
  }
}

TEST(DeepSpeedExperts, OptimizerFilesOfSwappedRanksAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const auto file = [](int rank) {
    return fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank);
  };
  for (const std::string name :
       {"moe_ep2_stage2_fp32_two_layers", "moe_ep2dp4_stage1_fp32_data_first",
        "moe_ep1_stage2_fp32", "moe_ep4_and_ep2_stage2_fp32_groups"}) {
    SCOPED_TRACE(name);
    const CopiedRun copy(name);
    copy.swap(file(0), file(1));
    EXPECT_EQ(error_of([&] { copy.open(); }).code(), ErrorCode::Corrupt);
  }
}

TEST(DeepSpeedExperts, AFileOfAnotherLayersExpertsIsRefused) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun copy("moe_ep2_stage2_fp32_two_layers");
  fs::copy_file(copy.file(expert_file(0, 1)), copy.file(expert_file(1, 1)),
                fs::copy_options::overwrite_existing);
  copy.rename_archive(expert_file(1, 1), expert_file(0, 1));
  EXPECT_THAT(error_of([&] { copy.open(); }),
              Fails(ErrorCode::Corrupt, {expert_file(1, 1), "expert 1 of layer 1"}));
}

/// The groups with experts tell how many ranks share them; without that no state has a name.
TEST(DeepSpeedExperts, AnOptimizerOfStage0WithoutGroupsOfExpertsIsALoss) {
  SKIP_WITHOUT_FIXTURES();
  const Json group = {{"params", {0, 1}}, {"lr", 0.1}, {"name", "ep_size_2"}};
  const Json state = {{"state", Json::object()}, {"param_groups", Json::array({group})}};
  const Json empty = {{"state", Json::object()}, {"param_groups", Json::array()}};
  const std::map<std::string, Json> optimizers = {
      {"is one of experts", state}, {"one of experts (moe", empty}, {"has none, and", nullptr}};
  for (const std::string name : {"moe_ep2_stage0_fp32", "moe_ep2_stage0_bf16"}) {
    for (const auto& [words, optimizer] : optimizers) {
      SCOPED_TRACE(name + ": " + words);
      const CopiedRun run(name);
      for (int rank = 0; rank < 2; ++rank) {
        const Path file = run.file(fmt::format("expp_rank_{}_mp_rank_00_optim_states.pt", rank));
        fs::remove(file);
        save_torch(file, {{"optimizer", optimizer}}, {});
      }
      const Losses losses = run.open()->losses();
      ASSERT_EQ(losses.size(), 1u);
      EXPECT_EQ(losses[0].role, Role::Optimizer);
      EXPECT_THAT(losses[0].why, testing::HasSubstr(words));
    }
  }
}

TEST(DeepSpeedExperts, AnOptimizerOfSomeExpertRanksOnlyIsRefused) {
  SKIP_WITHOUT_FIXTURES();
  for (const int rank : {0, 1}) {
    const CopiedRun run("moe_ep2_stage0_fp32");
    const std::string file = fmt::format("expp_rank_{}_mp_rank_00_optim_states.pt", rank);
    fs::remove(run.file(file));
    save_torch(run.file(file), {{"optimizer", nullptr}}, {});
    EXPECT_THAT(error_of([&] { run.open(); }),
                Fails(ErrorCode::Corrupt, {file, "only one has an optimizer"}));
  }
}

/// Rank 1 has the experts 2 and 3 of layer 0.
TEST(DeepSpeedExperts, MomentsThatAreAnotherRanksAreSaid) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun run("moe_ep2_stage2_fp32_two_layers");
  const Path file = run.file("zero_pp_rank_1_mp_rank_00_optim_states.pt");
  std::string content = test::read_file(file);
  const auto source = open_case("moe_ep2_stage2_fp32_two_layers");
  const auto bytes_of = [&](std::size_t tensor) {
    const std::vector<std::byte> bytes = read_all(*source, tensor);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  std::size_t replaced = 0;
  for (const char* expert : {"0", "1"}) {
    for (const std::string local : {".up.weight", ".up.bias", ".down.weight"}) {
      const std::string prefix = "moes.0.deepspeed_moe.experts.deepspeed_experts.";
      const std::string other = std::to_string(std::stoi(expert) + 2);
      for (const std::string_view moment : {state::kExpAvg, state::kExpAvgSq}) {
        const Catalog& catalog = source->catalog();
        const std::string from = bytes_of(catalog.find(prefix + expert + local, moment).value());
        const std::string to = bytes_of(catalog.find(prefix + other + local, moment).value());
        const std::size_t at = content.find(to);
        if (at == std::string::npos) continue;
        content.replace(at, to.size(), from);
        ++replaced;
      }
    }
  }
  EXPECT_EQ(replaced, 12u);
  EXPECT_TRUE(run.open()->notes().empty());
  test::write_file(file, content);
  EXPECT_THAT(run.open()->notes(),
              testing::ElementsAre(testing::AllOf(
                  testing::HasSubstr("12 moments of experts, first exp_avg of"),
                  testing::HasSubstr("deepspeed_experts.2.up"), testing::HasSubstr("another's"))));
}

}  // namespace
}  // namespace unishard::converters
