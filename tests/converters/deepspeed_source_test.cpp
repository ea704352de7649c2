// Real DeepSpeed checkpoints, read and compared bit by bit with what the saving ranks had in
// memory.
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/pickle_json.hpp"
#include "containers/torch_file.hpp"
#include "copied_run.hpp"
#include "expect.hpp"
#include "expected_tensors.hpp"
#include "fixtures.hpp"
#include "formats/deepspeed/flat_groups.hpp"
#include "formats/deepspeed/layout.hpp"
#include "formats/deepspeed/pickle_fields.hpp"
#include "formats/deepspeed/rank_reader.hpp"
#include "formats/deepspeed/reader.hpp"
#include "formats/deepspeed/slot_matcher.hpp"
#include "read_source.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <set>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
using test::fixtures;
using test::read_file;
using test::thrown_by;
using test::write_file;
namespace fs = std::filesystem;

SortedJson read_sorted(const Path& path) {
  return parse_sorted_json(read_file(path), path.string());
}

SortedJson sorted(const Json& value) { return SortedJson::parse(value.dump()); }

Path case_folder(const std::string& name) { return fixtures() / "deepspeed" / name; }

std::unique_ptr<Source> open_checkpoint(const Path& folder) {
  if (is_deepspeed(posix_storage(), folder)) return open_deepspeed(posix_storage(), folder, {});
  EXPECT_TRUE(is_deepspeed_universal(posix_storage(), folder)) << folder;
  return open_deepspeed_universal(posix_storage(), folder, {});
}

void compare_names(const Catalog& catalog, const SortedJson& about) {
  std::map<std::string, std::string> aliases;
  for (const Alias& alias : catalog.aliases) aliases[alias.fqn] = alias.target;
  EXPECT_EQ(SortedJson(aliases), about["tied"]);
  std::set<std::string> frozen, wanted_frozen;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (tensor.frozen) frozen.insert(tensor.fqn);
  }
  for (const auto& name : about["frozen"]) wanted_frozen.insert(name.get<std::string>());
  for (const auto& name : about["frozen_excluded"]) wanted_frozen.erase(name.get<std::string>());
  EXPECT_EQ(frozen, wanted_frozen);
}

/// Number of groups compared.
std::size_t compare_groups(const Catalog& catalog, const SortedJson& about, bool has_settings) {
  const SortedJson& wanted = about["param_groups"];
  EXPECT_EQ(catalog.groups.size(), wanted.size());
  for (std::size_t g = 0; g < std::min(catalog.groups.size(), wanted.size()); ++g) {
    const SortedJson group = sorted(catalog.groups[g]);
    EXPECT_EQ(group["params"], wanted[g]["params"]) << "group " << g;
    if (has_settings) {
      EXPECT_EQ(group, wanted[g]);
    }
    for (const auto& name : wanted[g]["params"]) {
      for (const TensorInfo& tensor : catalog.tensors) {
        if (tensor.fqn == name.get<std::string>()) {
          EXPECT_EQ(tensor.group, static_cast<int>(g)) << tensor.label();
        }
      }
    }
  }
  return wanted.size();
}

void compare_run(const Catalog& catalog, const SortedJson& about) {
  EXPECT_EQ(catalog.world_size, about["world_size"]);
  EXPECT_EQ(catalog.stage, about["stage"]);
  EXPECT_EQ(static_cast<double>(catalog.step), about["optimizer_step"].get<double>());
  EXPECT_EQ(sorted(catalog.scheduler), about["scheduler_state"]);
  EXPECT_EQ(sorted(catalog.loss_scaler), about["loss_scaler"]);
  EXPECT_EQ(catalog.client_state.is_null() ? SortedJson::object() : sorted(catalog.client_state),
            about["client_state"]);
  EXPECT_EQ(sorted(catalog.config), about["ds_config"]);
  for (const char* key : {"global_steps", "skipped_steps", "global_samples"})
    EXPECT_EQ(sorted(catalog.data_position[key]), about[key]) << key;
  EXPECT_EQ(catalog.producer["library"], "deepspeed");
  EXPECT_EQ(catalog.producer["version"], about["deepspeed_version"].get<std::string>());
}

TEST(DeepSpeedSource, EveryFixtureGivesTheBitsAndSettingsOfTheSavingRanks) {
  SKIP_WITHOUT_FIXTURES();
  std::size_t cases = 0, tensors = 0, groups = 0;
  for (const Path& folder : test::fixture_cases("deepspeed", 44)) {
    const std::string name = folder.filename();
    SCOPED_TRACE(name);
    const SortedJson about = read_sorted(folder / "case.json");
    std::unique_ptr<Source> source;
    EXPECT_EQ(thrown_by([&] { source = open_checkpoint(folder / "checkpoint"); }), std::nullopt);
    if (!source) continue;
    EXPECT_EQ(source->format(),
              name.starts_with("universal") ? "deepspeed-universal" : "deepspeed");
    tensors += compare_tensors(*source, folder / "expected.safetensors");
    compare_names(source->catalog(), about);
    groups += compare_groups(source->catalog(), about, name != "stage2_elastic");
    compare_run(source->catalog(), about);
    for (const std::string& note : notes_of(*source)) std::cout << name << ": " << note << "\n";
    ++cases;
  }
  std::cout << cases << " cases, " << tensors << " tensors, " << groups << " groups equal\n";
  EXPECT_EQ(cases, 44u);
}

// ---- What is refused, or read in spite of what DeepSpeed's own tools do with it.

constexpr std::string_view kStep = "global_step3";

/// A copy of a fixture's checkpoint folder.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    test::copy_folder(case_folder(name) / "checkpoint", path());
  }
  Path path() const { return folder_.path() / "checkpoint"; }
  Path tag() const { return path() / kStep; }
  Path optimizer(int rank) const { return tag() / optimizer_name(rank); }
  static std::string optimizer_name(int rank) {
    return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt";
  }

 private:
  test::TempDir folder_;
};

Path other(const std::string& name, const std::string& file) {
  for (const auto& entry : fs::directory_iterator(case_folder(name) / "checkpoint")) {
    if (fs::exists(entry.path() / file)) return entry.path() / file;
  }
  return {};
}

void replace(const Path& file, const Path& with) {
  fs::copy_file(with, file, fs::copy_options::overwrite_existing);
}

struct Damage {
  std::string what, fixture;
  std::function<void(const Copy&)> make;
  ErrorCode code;
  std::vector<std::string> words;
};

std::vector<Damage> damages() {
  const ErrorCode corrupt = ErrorCode::Corrupt;
  const std::string model = "mp_rank_00_model_states.pt";
  const std::string model3 = "zero_pp_rank_1_mp_rank_00_model_states.pt";
  const std::string rank2 = Copy::optimizer_name(2), rank1 = Copy::optimizer_name(1);
  return {
      {"missing optimizer rank",
       "stage2_w4",
       [](const Copy& c) { fs::remove(c.optimizer(1)), fs::remove(c.optimizer(2)); },
       corrupt,
       {"optimizer files of rank 1, 2 are missing", "4 ranks, 2 files"}},
      {"missing all optimizer ranks",
       "stage2_w2",
       [](const Copy& c) { fs::remove(c.optimizer(0)), fs::remove(c.optimizer(1)); },
       corrupt,
       {"optimizer files of rank 0, 1 are missing"}},
      {"missing model rank",
       "stage3_w3",
       [=](const Copy& c) { fs::remove(c.tag() / model3); },
       corrupt,
       {"model files of rank 1 are missing"}},
      {"missing model file",
       "stage2_w2",
       [=](const Copy& c) { fs::remove(c.tag() / model); },
       corrupt,
       {model, "missing"}},
      {"duplicate rank",
       "stage2_w2",
       [=](const Copy& c) { fs::copy_file(c.optimizer(1), c.tag() / ("bf16_" + rank1)); },
       corrupt,
       {"bf16_" + rank1, "file of rank 1", "mixes two saves"}},
      {"rank of a larger run",
       "stage2_w2",
       [=](const Copy& c) { fs::copy_file(other("stage2_w3", rank2), c.optimizer(2)); },
       corrupt,
       {"rank 2 are left from another save"}},
      {"world sizes disagree",
       "stage2_w2",
       [=](const Copy& c) { replace(c.tag() / model, other("stage2_w3", model)); },
       corrupt,
       {"partition_count is 2", "dp_world_size says 3", "2 optimizer files"}},
      {"partition_count of another run",
       "stage2_w2",
       [=](const Copy& c) { replace(c.optimizer(1), other("stage2_w3", rank1)); },
       corrupt,
       {"not of one save", "partition_count differs", rank1}},
      {"group count of another run",
       "stage2_w2",
       [=](const Copy& c) { replace(c.optimizer(1), other("stage2_round_robin", rank1)); },
       corrupt,
       {"not of one save", "1 and 2 flat groups"}},
      {"optimizer file of another step",
       "stage2_w2",
       [=](const Copy& c) { replace(c.optimizer(1), other("stage2_fp16_dynamic", rank1)); },
       corrupt,
       {"not of one save", "optimizer steps of group 0 are 3 and 5"}},
      {"model file of another step",
       "stage3_w2",
       [=](const Copy& c) { replace(c.tag() / model3, other("stage3_fp16_dynamic", model3)); },
       corrupt,
       {"not of one save", "global_steps are 3 and 8"}},
      {"model of other shapes",
       "stage2_w2",
       [=](const Copy& c) { replace(c.tag() / model, other("stage1_w2_frozen", model)); },
       corrupt,
       {"partitions of group 0 hold"}},
      {"truncated file",
       "stage3_w2",
       [](const Copy& c) { fs::resize_file(c.optimizer(1), fs::file_size(c.optimizer(1)) / 2); },
       corrupt,
       {rank1}},
      {"empty file",
       "stage2_w2",
       [](const Copy& c) { fs::resize_file(c.optimizer(1), 0); },
       corrupt,
       {rank1, "empty"}},
      {"tensor parallel",
       "stage2_w2",
       [=](const Copy& c) {
         fs::copy_file(c.tag() / model, c.tag() / "mp_rank_01_model_states.pt");
       },
       corrupt,
       {"mp_rank files of rank 1", "left from another save", "says 1 ranks"}},
      {"pipeline",
       "stage1_w2",
       [=](const Copy& c) { fs::copy_file(c.tag() / model, c.tag() / "layer_03-model_states.pt"); },
       corrupt,
       {"layer_03", "pipeline", "left from another save"}},
      {"experts",
       "stage1_w2",
       [=](const Copy& c) {
         fs::copy_file(c.tag() / model, c.tag() / "layer_0_expert_1_mp_rank_00_model_states.pt");
       },
       corrupt,
       {"layer_0_expert_0", "missing"}},
      {"swap file missing",
       "stage3_nvme_mixed",
       [](const Copy& c) {
         fs::remove(c.tag() / "offloaded_tensors/rank01/exp_avg-14_24.tensor.swp");
       },
       corrupt,
       {"exp_avg of rank 1", "exp_avg-14_24.tensor.swp is missing"}},
      {"swap file short",
       "stage3_nvme_swapped",
       [](const Copy& c) {
         fs::resize_file(c.tag() / "offloaded_tensors/rank01/0_4.tensor.swp", 100);
       },
       corrupt,
       {"rank01/0_4.tensor.swp", "100 bytes"}},
      {"swap file of odd size",
       "stage3_nvme_swapped",
       [](const Copy& c) {
         const Path file = c.tag() / "offloaded_tensors/rank01/0_4.tensor.swp";
         fs::resize_file(file, fs::file_size(file) + 3);
       },
       corrupt,
       {"rank01/0_4.tensor.swp", "bytes, but its sub-group has"}},
      {"latest names a missing tag",
       "stage2_w2",
       [](const Copy& c) { write_file(c.path() / "latest", "global_step9"); },
       ErrorCode::NotFound,
       {"global_step9", "global_step3"}},
      {"latest leads out",
       "stage2_w2",
       [](const Copy& c) { write_file(c.path() / "latest", "../checkpoint/global_step3"); },
       corrupt,
       {"latest", "not the name of a folder"}},
      {"latest is ..",
       "stage2_w2",
       [](const Copy& c) { write_file(c.path() / "latest", ".."); },
       corrupt,
       {"not the name of a folder"}},
      {"universal parameter missing",
       "universal_stage2",
       [](const Copy& c) { fs::remove_all(c.tag() / "zero/tok.weight"); },
       corrupt,
       {"zero/tok.weight/fp32.pt is missing"}},
      {"universal frozen part missing",
       "universal_stage3",
       [=](const Copy& c) { fs::remove(c.tag() / model3); },
       corrupt,
       {"model files of rank 1 are missing"}},
      {"universal of another model",
       "universal_stage2",
       [](const Copy& c) {
         replace(c.tag() / "zero/tok.weight/fp32.pt", c.tag() / "zero/norm.bias/fp32.pt");
       },
       corrupt,
       {"tok.weight/fp32.pt", "shape (11)"}},
  };
}

TEST(DeepSpeedSource, RefusesDamagedFoldersWithTheReason) {
  SKIP_WITHOUT_FIXTURES();
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.what);
    const Copy copy(damage.fixture);
    damage.make(copy);
    EXPECT_THAT(error_of([&] { open_source(posix_storage(), copy.path()); }),
                Fails(damage.code, damage.words));
  }
}

TEST(DeepSpeedSource, OpensTheFolderTheTagAndTheTagByName) {
  SKIP_WITHOUT_FIXTURES();
  const Copy copy("stage2_w2");
  const auto tensors = [](const Path& path, std::optional<std::string> tag = {}) {
    return open_source(posix_storage(), path, tag)->catalog().tensors.size();
  };
  const std::size_t expected = tensors(copy.path());
  EXPECT_EQ(tensors(copy.tag()), expected);
  EXPECT_EQ(tensors(copy.path(), std::string(kStep)), expected);
  write_file(copy.path() / "latest", "  global_step3\r\n");
  EXPECT_EQ(tensors(copy.path()), expected);
  fs::remove(copy.path() / "latest");
  EXPECT_EQ(tensors(copy.path()), expected) << "the only tag";
  fs::copy(copy.tag(), copy.path() / "global_step10", fs::copy_options::recursive);
  EXPECT_THROW(tensors(copy.path()), Error) << "two tags and no latest";
  EXPECT_EQ(tensors(copy.path(), "global_step10"), expected);
  EXPECT_THROW(tensors(copy.path(), "../checkpoint"), Error);
  EXPECT_THROW(tensors(copy.tag(), "global_step10"), Error);
}

TEST(DeepSpeedSource, ProbesTellItFromOtherFolders) {
  SKIP_WITHOUT_FIXTURES();
  Storage& storage = posix_storage();
  EXPECT_FALSE(is_deepspeed(storage, fixtures()));
  EXPECT_FALSE(is_deepspeed(storage, fixtures() / "missing"));
  EXPECT_FALSE(is_deepspeed(storage, case_folder("stage2_w2") / "case.json"));
  EXPECT_FALSE(is_deepspeed(storage, case_folder("universal_stage1") / "checkpoint"));
  EXPECT_FALSE(is_deepspeed(storage, case_folder("universal_stage1") / "checkpoint" / kStep));
  EXPECT_FALSE(is_deepspeed_universal(storage, case_folder("stage2_w2") / "checkpoint"));
  EXPECT_TRUE(
      is_deepspeed_universal(storage, case_folder("universal_stage3") / "checkpoint" / kStep));
}

TEST(DeepSpeedSource, ReadsAnyRangeAcrossPieces) {
  SKIP_WITHOUT_FIXTURES();
  for (const char* name : {"stage2_w4", "stage3_w4", "stage3_bf16_two_groups_frozen"}) {
    const auto source = open_checkpoint(case_folder(name) / "checkpoint");
    for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i) {
      const TensorInfo& info = source->catalog().tensors[i];
      const std::vector<std::byte> all = read_all(*source, i);
      for (std::uint64_t begin = 0; begin < info.elements(); begin += 7) {
        const std::uint64_t end = std::min(info.elements(), begin + 5), width = size_of(info.dtype);
        std::vector<std::byte> part((end - begin) * width);
        source->read(i, {begin, end}, part);
        ASSERT_TRUE(std::ranges::equal(part, std::span(all).subspan(begin * width, part.size())))
            << info.label();
      }
    }
  }
}

// ---- Files as other versions wrote them, made here.

/// A parameter a of (2, 2), b of (3) on two ranks, as DeepSpeed 0.4 wrote it: param_shapes in the
/// optimizer file, no buffer_names, no shared_params, no zero_stage class.
void save_old_checkpoint(const Path& tag, bool has_states) {
  fs::create_directories(tag);
  Json module = {{"a", tensor("a")},
                 {"b", tensor("b")},
                 {"tied", tensor("a")},
                 {"bn.running_mean", tensor("mean")},
                 {"fixed", tensor("fixed")}};
  Json model = {{"module", module},      {"optimizer", nullptr},
                {"skipped_steps", 0},    {"global_steps", has_states ? 5 : 0},
                {"dp_world_size", 2},    {"mp_world_size", 1},
                {"mine", {{"epoch", 4}}}};
  const DType f32 = DType::Float32;
  save_torch(tag / "mp_rank_00_model_states.pt", model,
             {{"a", {f32, {2, 2}, {1, 2, 3, 4}}},
              {"b", {f32, {3}, {5, 6, 7}}},
              {"mean", {f32, {2}, {8, 9}}},
              {"fixed", {f32, {1}, {10}}}});
  for (int rank = 0; rank < 2; ++rank) {
    Json state = Json::object();
    if (has_states) state = with_number_keys({{"step", 5}, {"exp_avg", tensor("avg")}});
    Json inner = {
        {"base_optimizer_state",
         {{"state", state}, {"param_groups", Json::array({{{"lr", 0.5}, {"params", {0}}}})}}},
        {"single_partition_of_fp32_groups", Json::array({tensor("master")})},
        {"zero_stage", 2},
        {"partition_count", {2}},
        {"param_shapes", Json::array({{{"a", {2, 2}}, {"b", {3}}}})}};
    const std::map<std::string, Made> tensors =
        rank == 0 ? std::map<std::string, Made>{{"master", {f32, {4}, {1, 2, 3, 4}}},
                                                {"avg", {f32, {4}, {11, 12, 13, 14}}}}
                  : std::map<std::string, Made>{{"master", {f32, {3}, {5, 6, 7}}},
                                                {"avg", {f32, {4}, {15, 16, 17, -1}}}};
    save_torch(tag / Copy::optimizer_name(rank), {{"optimizer_state_dict", inner}}, tensors);
  }
}

std::vector<float> floats_of(const Source& source, std::string_view fqn, std::string_view state) {
  const auto found = source.catalog().find(fqn, state);
  if (!found) return {};
  const std::vector<std::byte> bytes = read_all(source, *found);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(DeepSpeedSource, ReadsFilesOfOldVersions) {
  const test::TempDir folder;
  save_old_checkpoint(folder.path() / "tag", true);
  const auto source = open_source(posix_storage(), folder.path());
  const Catalog& catalog = source->catalog();
  using Floats = std::vector<float>;
  EXPECT_EQ(floats_of(*source, "a", "fp32"), (Floats{1, 2, 3, 4}));
  EXPECT_EQ(floats_of(*source, "b", "fp32"), (Floats{5, 6, 7}));
  EXPECT_EQ(floats_of(*source, "a", "exp_avg"), (Floats{11, 12, 13, 14}));
  EXPECT_EQ(floats_of(*source, "b", "exp_avg"), (Floats{15, 16, 17})) << "without the padding";
  EXPECT_EQ(floats_of(*source, "bn.running_mean", "buffer"), (Floats{8, 9}));
  EXPECT_EQ(floats_of(*source, "fixed", "weights"), (Floats{10}));
  EXPECT_EQ(catalog.tensors.size(), 6u);
  EXPECT_EQ(catalog.aliases, (std::vector<Alias>{{"tied", "a"}}));
  EXPECT_EQ(catalog.step, 5);
  EXPECT_EQ(catalog.stage, 2u);
  EXPECT_EQ(catalog.client_state, (Json{{"mine", {{"epoch", 4}}}}));
}

/// The optimizer of one of two ranks at stage 2, whose master and moment are the named tensors.
Json optimizer_of_rank(const char* master, const char* moment) {
  return {{"base_optimizer_state",
           {{"state", with_number_keys({{"step", 5}, {"exp_avg", tensor(moment)}})},
            {"param_groups", Json::array({{{"lr", 0.5}, {"params", {0}}}})}}},
          {"single_partition_of_fp32_groups", Json::array({tensor(master)})},
          {"zero_stage", 2},
          {"partition_count", {2}}};
}

TEST(DeepSpeedSource, AMomentThatIsLongerThanItsPartitionIsDamage) {
  const test::TempDir folder;
  save_old_checkpoint(folder.path() / "tag", true);
  const Path file = folder.path() / "tag" / Copy::optimizer_name(1);
  const DType f32 = DType::Float32;
  fs::remove(file);
  const Json inner = optimizer_of_rank("master", "avg");
  save_torch(
      file, {{"optimizer_state_dict", inner}},
      {{"master", {f32, {3}, {5, 6, 7}}}, {"avg", {f32, {8}, {15, 16, 17, -1, 18, 19, 20, -1}}}});
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder.path()); }),
              Fails(ErrorCode::Corrupt, {file.string(), "exp_avg has 8 elements, fp32 has 3"}));
}

TEST(DeepSpeedSource, MomentsOfDifferentLengthsAreDamage) {
  const test::TempDir folder;
  save_old_checkpoint(folder.path() / "tag", true);
  const Path file = folder.path() / "tag" / Copy::optimizer_name(1);
  const DType f32 = DType::Float32;
  fs::remove(file);
  Json inner = optimizer_of_rank("master", "avg");
  inner["base_optimizer_state"]["state"] =
      with_number_keys({{"step", 5}, {"exp_avg", tensor("avg")}, {"exp_avg_sq", tensor("square")}});
  save_torch(file, {{"optimizer_state_dict", inner}},
             {{"master", {f32, {3}, {5, 6, 7}}},
              {"avg", {f32, {4}, {15, 16, 17, 0}}},
              {"square", {f32, {3}, {25, 26, 27}}}});
  EXPECT_THAT(
      error_of([&] { open_source(posix_storage(), folder.path()); }),
      Fails(ErrorCode::Corrupt, {file.string(), "exp_avg has 4 elements, and exp_avg_sq has 3"}));
}

TEST(DeepSpeedSource, ReadsACheckpointOfBeforeTheFirstStep) {
  const test::TempDir folder;
  save_old_checkpoint(folder.path() / "tag", false);
  const auto source = open_source(posix_storage(), folder.path());
  EXPECT_EQ(floats_of(*source, "b", "fp32"), (std::vector<float>{5, 6, 7}));
  EXPECT_EQ(source->catalog().tensors.size(), 4u);
  EXPECT_EQ(source->catalog().step, 0);
}

TEST(DeepSpeedSource, NotesWeightsThatAreNotThoseOfTheOptimizer) {
  const test::TempDir folder;
  const Path tag = folder.path() / "tag";
  save_old_checkpoint(tag, true);
  fs::remove(tag / Copy::optimizer_name(1));
  const Json inner = optimizer_of_rank("m", "m");
  save_torch(tag / Copy::optimizer_name(1), {{"optimizer_state_dict", inner}},
             {{"m", {DType::Float32, {3}, {5, 6, 8}}}});
  const auto notes = notes_of(*open_source(posix_storage(), folder.path()));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("1 parameters, first \"b\""), std::string::npos) << notes[0];
}

TEST(DeepSpeedSource, ReadsMoreRanksThanItMayOpenFiles) {
  constexpr std::uint64_t kRanks = 200;
  const test::TempDir folder;
  save_torch(folder.path() / "mp_rank_00_model_states.pt",
             {{"module", Json::object()}, {"buffer_names", Json::array()}, {"global_steps", 1}},
             {});
  std::vector<float> all;
  for (std::uint64_t rank = 0; rank < kRanks; ++rank) {
    const Json shapes = Json::array({{{"a", {kRanks, 2}}}});
    const Json inner = {
        {"base_optimizer_state",
         {{"state", Json::object()}, {"param_groups", Json::array({{{"params", {0}}}})}}},
        {"single_partition_of_fp32_groups", Json::array({tensor("p")})},
        {"zero_stage", 1},
        {"partition_count", {kRanks}},
        {"param_shapes", shapes}};
    const std::vector<float> values = {static_cast<float>(rank), -static_cast<float>(rank)};
    all.insert(all.end(), values.begin(), values.end());
    save_torch(folder.path() / Copy::optimizer_name(static_cast<int>(rank)),
               {{"optimizer_state_dict", inner}}, {{"p", {DType::Float32, {2}, values}}});
  }
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{160, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  const auto source = open_source(posix_storage(), folder.path());
  EXPECT_EQ(floats_of(*source, "a", "fp32"), all);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(DeepSpeedSource, FrozenParametersWithoutTheirScalesAreLost) {
  const test::TempDir folder;
  const Path tag = folder.path() / "tag";
  save_old_checkpoint(tag, true);
  fs::remove(tag / "mp_rank_00_model_states.pt");
  const Json model = {{"module", {{"a", tensor("a")}}},
                      {"frozen_param_fragments", {{"q", tensor("q")}, {"z", tensor("z")}}},
                      {"frozen_param_shapes", {{"q", {4}}, {"z", {4}}}},
                      {"global_steps", 5}};
  save_torch(tag / "mp_rank_00_model_states.pt", model,
             {{"a", {DType::Float32, {2, 2}, {1, 2, 3, 4}}},
              {"q", {DType::Int8, {4}, {}}},
              {"z", {DType::Complex64, {4}, {}}}});  // no quantized numbers are complex
  const Losses losses = open_source(posix_storage(), folder.path())->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].role, Role::Scale);
  EXPECT_EQ(losses[0].name, "q");
  EXPECT_TRUE(losses[0].is_frozen) << "who wants no frozen parameters does not miss it";
}

// ---- Files that contradict each other.

/// Replaces the model file of save_old_checkpoint(): a and b as there, and what `more` says.
void save_old_model(const Path& tag, const Json& more, std::map<std::string, Made> tensors) {
  Json model = {{"module", {{"a", tensor("a")}, {"b", tensor("b")}}},
                {"buffer_names", Json::array()},
                {"global_steps", 5},
                {"dp_world_size", 2}};
  for (const auto& [key, value] : more.items()) model[key] = value;
  tensors.insert(
      {{"a", {DType::Float32, {2, 2}, {1, 2, 3, 4}}}, {"b", {DType::Float32, {3}, {5, 6, 7}}}});
  fs::remove(tag / "mp_rank_00_model_states.pt");
  save_torch(tag / "mp_rank_00_model_states.pt", model, tensors);
}

/// What a rank's model file of stage 3 says of the frozen parameter f.
struct FrozenPart {
  Json shapes;                            ///< frozen_param_shapes
  std::optional<std::uint64_t> elements;  ///< of its fragment; nullopt: it has none
};

struct Stage3Values {
  int steps = 5;
  float frozen_slope = 0;        ///< from one element of a part to the next; the parts are equal
  bool is_twice = false;         ///< the module of a has a second name
  std::string other_name = "a";  ///< of a in the list of rank 1
  bool has_own_facts = false;    ///< each rank has another schedule and configuration
};

/// A trained parameter a of (4) and a frozen one f on two ranks, as stage 3 writes them.
void save_stage_3(const Path& tag, const std::array<FrozenPart, 2>& frozen,
                  const Stage3Values& values = {}) {
  fs::create_directories(tag);
  const DType f32 = DType::Float32;
  for (std::size_t rank = 0; rank < frozen.size(); ++rank) {
    const FrozenPart& part = frozen[rank];
    const Json fragments = part.elements ? Json{{"f", tensor("part")}} : Json(Json::object());
    const std::string name = rank == 0 ? "a" : values.other_name;
    Json module = {{"a", tensor("none of a")}, {"f", tensor("none")}};
    if (values.is_twice) module["again"] = tensor("none of a");
    Json model = {{"module", module},
                  {"buffer_names", Json::array()},
                  {"param_shapes", Json::array({{{name, {4}}}})},
                  {"frozen_param_shapes", part.shapes},
                  {"frozen_param_fragments", fragments},
                  {"shared_params", Json::object()},
                  {"global_steps", values.steps},
                  {"dp_world_size", 2}};
    if (values.has_own_facts) {
      model["lr_scheduler"] = {{"last_batch_iteration", rank}};
      model["ds_config"] = {{"train_batch_size", rank + 1}};
    }
    const std::uint64_t elements = part.elements.value_or(0);
    std::vector<float> held(elements, 9);
    for (std::size_t i = 1; i < held.size(); ++i) held[i] = held[i - 1] + values.frozen_slope;
    save_torch(tag / ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt"),
               model,
               {{"none", {f32, {0}, {}}},
                {"none of a", {f32, {0}, {}}},
                {"part", {f32, {elements}, held}}});
    const Json base = {{"state", with_number_keys({{"step", values.steps}})},
                       {"param_groups", Json::array({{{"lr", 0.5}, {"params", {0}}}})}};
    const Json inner = {{"zero_stage", 3},
                        {"partition_count", 2},
                        {"optimizer_state_dict", base},
                        {"fp32_flat_groups", Json::array({tensor("p")})}};
    save_torch(tag / Copy::optimizer_name(static_cast<int>(rank)),
               {{"optimizer_state_dict", inner}},
               {{"p", {f32, {2}, {static_cast<float>(rank), 2}}}});
  }
}

Error error_of_stage_3(const std::array<FrozenPart, 2>& frozen) {
  const test::TempDir folder;
  save_stage_3(folder.path() / "tag", frozen);
  return error_of([&] { open_source(posix_storage(), folder.path()); });
}

// A module that its parent has registered twice is not in shared_params.
TEST(DeepSpeedSource, TheSecondNameOfAModuleIsAnAlias) {
  const test::TempDir folder;
  const FrozenPart none{.shapes = Json::object(), .elements = std::nullopt};
  save_stage_3(folder.path() / "tag", {none, none}, {.is_twice = true});
  const auto source = open_source(posix_storage(), folder.path());
  ASSERT_EQ(source->catalog().aliases.size(), 1u);
  EXPECT_EQ(source->catalog().aliases[0].fqn, "again");
  EXPECT_EQ(source->catalog().aliases[0].target, "a");
}

TEST(DeepSpeedSource, RanksThatListOtherParametersAreRefused) {
  const test::TempDir folder;
  const FrozenPart none{.shapes = Json::object(), .elements = std::nullopt};
  save_stage_3(folder.path() / "tag", {none, none}, {.other_name = "b"});
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder.path()); }),
              Fails(ErrorCode::Corrupt, "parameter \"a\" is not the same in their param_shapes"));
}

TEST(DeepSpeedSource, NamesTheModelsOfOthersBesideIt) {
  const test::TempDir folder;
  const Path tag = folder.path() / "tag";
  save_old_checkpoint(tag, true);
  EXPECT_TRUE(open_source(posix_storage(), folder.path())->losses().empty());
  for (const char* name : {"model.safetensors", "adapter_model.safetensors", "optimizer.pt",
                           "dcp/.metadata", "dcp/__0_0.distcp"})
    write_file(folder.path() / name, "x");
  std::filesystem::copy_file(Path(UNISHARD_TEST_DATA) / "golden/trainer/llama/scheduler.pt",
                             folder.path() / "rng_state_0.pth");
  std::map<std::string, Role> found;
  for (const Loss& loss : open_source(posix_storage(), folder.path())->losses())
    found.emplace(loss.name, loss.role);
  EXPECT_EQ(found, (std::map<std::string, Role>{{"adapter_model.safetensors", Role::OtherModel},
                                                {"dcp", Role::OtherModel},
                                                {"model.safetensors", Role::OtherModel},
                                                {"optimizer.pt", Role::SideFile}}));
  write_file(tag / "model.safetensors", "x");
  EXPECT_EQ(open_source(posix_storage(), tag)->losses().size(), 1u);
}

TEST(DeepSpeedContradictions, ListedFrozenParametersThatNoFileHoldsAreLost) {
  const test::TempDir folder;
  save_old_checkpoint(folder.path() / "stage2/tag", true);
  save_old_model(
      folder.path() / "stage2/tag",
      {{"frozen_param_shapes", {{"f", {3}}}}, {"frozen_param_fragments", Json::object()}}, {});
  const FrozenPart part{{{"f", {3}}}, std::nullopt};
  save_stage_3(folder.path() / "stage3/tag", {part, part});
  for (const char* stage : {"stage2", "stage3"}) {
    SCOPED_TRACE(stage);
    const auto source = open_source(posix_storage(), folder.path() / stage);
    EXPECT_FALSE(source->catalog().find("f", state::kWeights));
    ASSERT_EQ(source->losses().size(), 1u);
    EXPECT_EQ(source->losses()[0].role, Role::Weight);
    EXPECT_EQ(source->losses()[0].name, "f");
    EXPECT_EQ(source->losses()[0].why, "no file holds its data");
    EXPECT_TRUE(source->losses()[0].is_frozen);
  }
}

TEST(DeepSpeedContradictions, ListedBuffersThatNoFileHoldsAreLost) {
  const test::TempDir folder;
  save_old_checkpoint(folder.path() / "tag", true);
  save_old_model(folder.path() / "tag", {{"buffer_names", {"ghost"}}}, {});
  const Losses losses = open_source(posix_storage(), folder.path())->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].role, Role::Buffer);
  EXPECT_EQ(losses[0].name, "ghost");
}

TEST(DeepSpeedContradictions, AnEmptyModuleLosesItsBuffersAndIsNoted) {
  const test::TempDir folder;
  save_old_checkpoint(folder.path() / "tag", true);
  save_old_model(folder.path() / "tag",
                 {{"module", Json::object()}, {"buffer_names", {"mean", "count"}}}, {});
  const auto source = open_source(posix_storage(), folder.path());
  EXPECT_EQ(source->losses().size(), 2u);
  EXPECT_THAT(notes_of(*source),
              testing::Contains(testing::HasSubstr("lacks 2 trained parameters, first \"a\"")));
}

TEST(DeepSpeedContradictions, ATrainedParameterThatTheModuleLacksIsNoted) {
  const test::TempDir folder;
  save_old_checkpoint(folder.path() / "tag", true);
  save_old_model(folder.path() / "tag", {{"module", {{"a", tensor("a")}}}}, {});
  const auto source = open_source(posix_storage(), folder.path());
  EXPECT_EQ(floats_of(*source, "b", "fp32"), (std::vector<float>{5, 6, 7}));
  EXPECT_THAT(notes_of(*source),
              testing::ElementsAre(testing::HasSubstr("lacks 1 trained parameters, first \"b\"")));
}

TEST(DeepSpeedContradictions, TensorsThatNoListHasAreNoted) {
  const test::TempDir folder;
  const Path tag = folder.path() / "tag";
  save_old_checkpoint(tag, true);
  const auto notes_with = [&](const char* name, bool is_fragment, bool has_lists) {
    Json more = {{"module", {{"a", tensor("a")}, {"b", tensor("b")}}}};
    if (!is_fragment) more["module"][name] = tensor("f");
    if (has_lists) {
      more["param_shapes"] = Json::array({{{"a", {2, 2}}, {"b", {3}}}});
      more["frozen_param_shapes"] = Json::object();
      more["frozen_param_fragments"] = Json::object();
    }
    if (is_fragment) more["frozen_param_fragments"][name] = tensor("f");
    save_old_model(tag, more, {{"f", {DType::Float32, {2}, {1, 2}}}});
    return notes_of(*open_source(posix_storage(), folder.path()));
  };
  for (const bool is_fragment : {false, true})
    EXPECT_THAT(notes_with("odd", is_fragment, true),
                testing::ElementsAre(testing::HasSubstr("1 tensors of the model, first \"odd\"")));
  EXPECT_TRUE(notes_with("odd", false, false).empty()) << "old files have no complete lists";
  EXPECT_TRUE(notes_with("a.absmax", false, true).empty()) << "bitsandbytes adds it";
}

/// The notes, or the error, of a model in which shared_params ties t to b. `own` is what the module
/// has under t.
class TiedNames : public testing::Test {
 protected:
  void save(std::optional<Made> own, const Json& more = Json::object()) {
    save_old_checkpoint(tag_, true);
    Json model = {{"module", {{"a", tensor("a")}, {"b", tensor("b")}}},
                  {"shared_params", {{"t", "b"}}}};
    if (own) model["module"]["t"] = tensor("t");
    for (const auto& [key, value] : more.items()) model[key] = value;
    save_old_model(tag_, model,
                   own ? std::map<std::string, Made>{{"t", *own}} : std::map<std::string, Made>());
  }
  std::vector<std::string> notes() { return notes_of(*open_source(posix_storage(), tag_)); }

  const test::TempDir folder_;
  const Path tag_ = folder_.path() / "tag";
};

TEST_F(TiedNames, OfEqualValuesAreNotNoted) {
  save(Made{DType::Float32, {3}, {5, 6, 7}});
  EXPECT_TRUE(notes().empty());
}

TEST_F(TiedNames, OfOtherValuesAreNoted) {
  save(Made{DType::Float32, {3}, {5, 6, 8}});
  EXPECT_THAT(notes(), testing::ElementsAre(testing::HasSubstr("first \"t\", have other values")));
}

TEST_F(TiedNames, OfAnotherShapeAreRefused) {
  save(Made{DType::Float32, {2}, {5, 6}});
  EXPECT_THAT(error_of([&] { notes(); }),
              Fails(ErrorCode::Corrupt, {"\"t\" to \"b\"", "(2)", "(3)"}));
}

TEST_F(TiedNames, OfAFrozenParameterThatWasLeftOutHaveItsValues) {
  save(Made{DType::Float32, {3}, {5, 6, 8}}, {{"shared_params", {{"t", "f"}}}});
  const auto source = open_source(posix_storage(), tag_);
  EXPECT_TRUE(source->losses().empty());
  EXPECT_EQ(floats_of(*source, "t", "weights"), (std::vector<float>{5, 6, 8}));
  EXPECT_EQ(source->catalog().aliases, (std::vector<Alias>{{"f", "t"}}));
}

TEST_F(TiedNames, ThatTheModuleLacksAreNoted) {
  save(std::nullopt);
  EXPECT_THAT(notes(),
              testing::ElementsAre(testing::HasSubstr("first \"t\", are in shared_params")));
}

TEST_F(TiedNames, ThatAreFrozenParametersThemselvesAreRefused) {
  save(Made{DType::Float32, {3}, {5, 6, 7}},
       {{"frozen_param_shapes", {{"t", {3}}}}, {"frozen_param_fragments", Json::object()}});
  EXPECT_THAT(error_of([&] { notes(); }),
              Fails(ErrorCode::Corrupt, {"\"t\" to \"b\"", "a parameter of its own"}));
}

TEST(DeepSpeedContradictions, FrozenPartsOfStage3AreThoseOfTheirShape) {
  const test::TempDir folder;
  const FrozenPart whole{{{"f", {3}}}, 2};  // the last rank's part ends with padding
  save_stage_3(folder.path() / "tag", {whole, whole});
  const auto source = open_source(posix_storage(), folder.path());
  EXPECT_EQ(floats_of(*source, "f", "weights"), (std::vector<float>{9, 9, 9}));
  const std::string rank1 = "zero_pp_rank_1_mp_rank_00_model_states.pt";
  const FrozenPart small{{{"f", {2}}}, 2}, large{{{"f", {3, 3}}}, 2}, none{{{"f", {3}}}, {}};
  const FrozenPart unlisted{Json::object(), {}}, cut{{{"f", {3}}}, 1};
  EXPECT_THAT(error_of_stage_3({small, small}),
              Fails(ErrorCode::Corrupt, {"zero_pp_rank_0", "\"f\"", "has 2 elements", "needs 1"}));
  EXPECT_THAT(error_of_stage_3({large, large}),
              Fails(ErrorCode::Corrupt, {"zero_pp_rank_0", "\"f\"", "needs 5"}));
  EXPECT_THAT(error_of_stage_3({whole, cut}),
              Fails(ErrorCode::Corrupt, {rank1, "\"f\"", "has 1 elements", "needs 2"}));
  EXPECT_THAT(error_of_stage_3({whole, large}),
              Fails(ErrorCode::Corrupt, {rank1, "zero_pp_rank_0", "\"f\"", "frozen_param_shapes"}));
  EXPECT_THAT(error_of_stage_3({whole, unlisted}),
              Fails(ErrorCode::Corrupt, {rank1, "zero_pp_rank_0", "\"f\"", "frozen_param_shapes"}));
  EXPECT_THAT(error_of_stage_3({none, unlisted}),
              Fails(ErrorCode::Corrupt, {rank1, "zero_pp_rank_0", "\"f\"", "frozen_param_shapes"}));
  EXPECT_THAT(error_of_stage_3({whole, none}), Fails(ErrorCode::Corrupt, {rank1, "\"f\""}));
  EXPECT_THAT(error_of_stage_3({none, whole}), Fails(ErrorCode::Corrupt, {rank1, "\"f\""}));
}

TEST(DeepSpeedContradictions, ShapesThatAreNotTheModulesAreRefused) {
  const test::TempDir folder;
  const Path tag = folder.path() / "tag";
  save_old_checkpoint(tag, true);
  save_old_model(tag, {{"param_shapes", Json::array({{{"a", {4, 1}}, {"b", {3}}}})}}, {});
  EXPECT_THAT(
      error_of([&] { open_source(posix_storage(), tag); }),
      Fails(ErrorCode::Corrupt, {"mp_rank_00_model_states.pt", "\"a\"", "(2, 2)", "(4, 1)"}));
  const auto open_frozen = [&](const Shape& module, const Shape& fragment, const Json& listed) {
    const Json more = {{"module", {{"a", tensor("a")}, {"b", tensor("b")}, {"f", tensor("f")}}},
                       {"frozen_param_shapes", {{"f", listed}}},
                       {"frozen_param_fragments", {{"f", tensor("part")}}}};
    save_old_model(
        tag, more,
        {{"f", {DType::Float32, module, {1, 2}}}, {"part", {DType::Float32, fragment, {1, 2}}}});
    open_source(posix_storage(), tag);
  };
  EXPECT_EQ(thrown_by([&] { open_frozen({2}, {2}, {2}); }), std::nullopt);
  EXPECT_THAT(error_of([&] {
                open_frozen({2}, {2}, {2, 1});
              }),
              Fails(ErrorCode::Corrupt, {"\"f\"", "(2)", "(2, 1)", "frozen_param_shapes"}));
  EXPECT_THAT(error_of([&] {
                open_frozen({1, 2}, {2}, {2});
              }),
              Fails(ErrorCode::Corrupt, {"\"f\"", "(2)", "(1, 2)", "module"}));
}

TEST(DeepSpeedContradictions, FrozenCopiesThatDifferAreNoted) {
  const test::TempDir folder;
  const Path tag = folder.path() / "tag";
  save_old_checkpoint(tag, true);
  save_old_model(tag,
                 {{"module", {{"a", tensor("a")}, {"b", tensor("b")}, {"f", tensor("f")}}},
                  {"frozen_param_shapes", {{"f", {2}}}},
                  {"frozen_param_fragments", {{"f", tensor("part")}}}},
                 {{"f", {DType::Float32, {2}, {1, 2}}}, {"part", {DType::Float32, {2}, {1, 3}}}});
  const auto source = open_source(posix_storage(), folder.path());
  EXPECT_EQ(floats_of(*source, "f", "weights"), (std::vector<float>{1, 3}));
  const auto notes = notes_of(*source);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("1 frozen parameters, first \"f\""), std::string::npos) << notes[0];
}

void swap_files(const Path& a, const Path& b) {
  const Path aside = a.parent_path() / "aside";
  fs::rename(a, aside);
  fs::rename(b, a);
  fs::rename(aside, b);
}

/// torch names the folder in an archive after the file; another program may give any name.
void give_archive_another_name(const Path& file) {
  const std::string name = file.stem().string() + "/";
  std::string bytes = read_file(file);
  for (std::size_t at = bytes.find(name); at != bytes.npos; at = bytes.find(name, at))
    bytes.replace(at, name.size() - 1, std::string(name.size() - 1, 'x'));
  fs::remove(file);
  write_file(file, bytes);
}

TEST(DeepSpeedContradictions, FilesThatWereWrittenUnderOtherNamesAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  for (const char* fixture : {"stage2_w2", "stage3_w2", "stage1_bf16"}) {
    SCOPED_TRACE(fixture);
    const Copy swapped(fixture);
    const Path tag = swapped.path() / read_file(swapped.path() / "latest");
    std::vector<Path> files;
    for (const auto& entry : fs::directory_iterator(tag)) {
      if (entry.path().filename().string().ends_with("_optim_states.pt"))
        files.push_back(entry.path());
    }
    ASSERT_GE(files.size(), 2u);
    swap_files(files[0], files[1]);
    EXPECT_THAT(error_of([&] { open_source(posix_storage(), swapped.path()); }),
                Fails(ErrorCode::Corrupt, {"it was written as", files[0].filename().string()}));
  }
}

TEST(DeepSpeedContradictions, FilesOfStage3ThatDoNotTellTheirRankAreADoubt) {
  SKIP_WITHOUT_FIXTURES();
  const Copy copy("stage3_w2");
  EXPECT_TRUE(notes_of(*open_source(posix_storage(), copy.path())).empty());
  const Path tag = copy.path() / read_file(copy.path() / "latest");
  give_archive_another_name(tag / Copy::optimizer_name(1));
  EXPECT_THAT(notes_of(*open_source(posix_storage(), copy.path())),
              testing::ElementsAre(testing::AllOf(testing::HasSubstr(Copy::optimizer_name(1)),
                                                  testing::HasSubstr("of which rank"))));
}

TEST(DeepSpeedContradictions, OptimizerFilesInThePlaceOfOthersAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  for (const char* fixture : {"stage2_w2", "stage1_w3", "stage2_elastic", "stage2_round_robin",
                              "stage2_parameter_alignment", "stage2_w4"}) {
    SCOPED_TRACE(fixture);
    const Copy swapped(fixture), copied(fixture), back(fixture);
    for (const Copy* copy : {&swapped, &copied, &back}) {
      for (const auto& entry :
           fs::directory_iterator(copy->path() / read_file(copy->path() / "latest")))
        give_archive_another_name(entry.path());
    }
    const auto opens = [](const Path& folder) {
      return error_of([&] { open_source(posix_storage(), folder); });
    };
    const auto file = [](const Copy& copy, int rank) {
      return copy.path() / read_file(copy.path() / "latest") / Copy::optimizer_name(rank);
    };
    swap_files(file(swapped, 0), file(swapped, 1));
    EXPECT_THAT(opens(swapped.path()),
                Fails(ErrorCode::Corrupt, {Copy::optimizer_name(0) + " is that of rank 1",
                                           Copy::optimizer_name(1) + " is that of rank 0"}));
    replace(file(copied, 1), file(copied, 0));
    EXPECT_THAT(opens(copied.path()),
                Fails(ErrorCode::Corrupt, {Copy::optimizer_name(1) + " is that of rank 0"}));
    replace(file(back, 0), file(back, 1));
    // The last partition has no padding, so that there may be too few elements.
    EXPECT_THAT(opens(back.path()), Fails(ErrorCode::Corrupt));
  }
}

TEST(DeepSpeedContradictions, CopiesOfAnotherRanksFileOfStage3AreRefused) {
  const test::TempDir folder;
  const Path tag = folder.path() / "tag";
  const FrozenPart whole{{{"f", {3}}}, 2};
  save_stage_3(tag, {whole, whole});
  EXPECT_EQ(thrown_by([&] { open_source(posix_storage(), tag); }), std::nullopt)
      << "equal parts of one value";
  replace(tag / Copy::optimizer_name(1), tag / Copy::optimizer_name(0));
  EXPECT_THAT(
      error_of([&] { open_source(posix_storage(), tag); }),
      Fails(ErrorCode::Corrupt, {Copy::optimizer_name(0), Copy::optimizer_name(1), "a copy"}));
  save_stage_3(folder.path() / "model", {whole, whole}, {.frozen_slope = 1});
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder.path() / "model"); }),
              Fails(ErrorCode::Corrupt, {"zero_pp_rank_1_mp_rank_00_model_states.pt", "a copy"}));
}

TEST(DeepSpeedContradictions, FilesOfAnEarlierSaveOfStage3AreRefused) {
  const FrozenPart whole{{{"f", {3}}}, 2};
  for (const bool is_trainer : {false, true}) {
    const test::TempDir run;
    const Path old = run.path() / (is_trainer ? "checkpoint-5/global_step5" : "global_step5");
    const Path tag = run.path() / (is_trainer ? "checkpoint-7/global_step7" : "global_step7");
    save_stage_3(old, {whole, whole});
    save_stage_3(tag, {whole, whole}, {.steps = 7});
    for (const int rank : {0, 1})
      replace(tag / Copy::optimizer_name(rank), old / Copy::optimizer_name(rank));
    EXPECT_THAT(error_of([&] { open_source(posix_storage(), tag); }),
                Fails(ErrorCode::Corrupt, {"5 steps", "the run 7", "a copy of", "global_step5"}));
    fs::remove_all(old);
    EXPECT_THAT(notes_of(*open_source(posix_storage(), tag)),
                testing::Contains(testing::HasSubstr("counts 5 steps, the run 7")));
  }
}

TEST(DeepSpeedContradictions, ASaveOfStage0OverOneOfAnotherStageIsRefused) {
  SKIP_WITHOUT_FIXTURES();
  const std::string tag = "checkpoint/global_step3", model = "mp_rank_00_model_states.pt";
  for (const std::string name : {"stage2_w2", "stage3_w2"}) {
    const test::TempDir temp;
    const Path folder = temp.path() / name;
    fs::copy(fixtures() / "deepspeed" / name / tag, folder);
    fs::copy(fixtures() / "deepspeed" / "stage0_fp32" / tag / model, folder / model,
             fs::copy_options::overwrite_existing);
    EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder); }),
                Fails(ErrorCode::Unsupported, {"two saves have one tag", model, "optim_states.pt"}))
        << name;
  }
}

TEST(DeepSpeedContradictions, OptimizerFilesOfAnotherSaveAreRefused) {
  const test::TempDir folder;
  const Path tag = folder.path() / "tag";
  save_old_checkpoint(tag, true);
  save_old_model(
      tag, Json::object(),
      {{"a", {DType::Float32, {2, 2}, {7, 3, 5, 9}}}, {"b", {DType::Float32, {3}, {1, 2, 4}}}});
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder.path()); }),
              Fails(ErrorCode::Corrupt,
                    {"2 parameters", "\"a\"", "the optimizer's files are not of this save"}));
  save_old_model(tag, Json::object(),
                 {{"a", {DType::Float32, {2, 2}, {1.0001F, 2.0001F, 3.0001F, 4.0001F}}},
                  {"b", {DType::Float32, {3}, {1, 2, 4}}}});
  EXPECT_EQ(notes_of(*open_source(posix_storage(), folder.path())).size(), 1u)
      << "a differs by less than a 16-bit type tells";
}

TEST(DeepSpeedContradictions, ATagThatIsALinkIsRefusedWithTheWayToReadIt) {
  SKIP_WITHOUT_FIXTURES();
  const Copy copy("stage2_w2");
  const test::TempDir run;
  fs::create_directory_symlink(copy.tag(), run.path() / kStep);
  write_file(run.path() / "latest", std::string(kStep));
  const auto open = [](const Path& path, std::optional<std::string> tag = {}) {
    open_source(posix_storage(), path, tag);
  };
  const std::string link = (run.path() / kStep).string();
  for (const bool has_script : {false, true}) {
    if (has_script) write_file(run.path() / "zero_to_fp32.py", "#");
    EXPECT_THAT(error_of([&] { open(run.path()); }),
                Fails(ErrorCode::Unsupported, {link, "link", "outside"}, {"name the link itself"}));
    EXPECT_THAT(error_of([&] { open(run.path(), std::string(kStep)); }),
                Fails(ErrorCode::Unsupported, {link, "link", "outside"}, {"name the link itself"}));
  }
  EXPECT_EQ(thrown_by([&] { open(run.path() / kStep); }), std::nullopt);
  fs::create_directory_symlink(std::string(kStep), copy.path() / "best");
  write_file(copy.path() / "latest", "best");
  EXPECT_EQ(thrown_by([&] { open(copy.path()); }), std::nullopt) << "a link that stays inside";
}

TEST(DeepSpeedContradictions, FilesThatAreLinksAreFollowedWithinTheFolder) {
  SKIP_WITHOUT_FIXTURES();
  const Copy copy("stage2_w2");
  const Path file = copy.tag() / Copy::optimizer_name(1), store = copy.path() / "store";
  fs::create_directory(store);
  fs::rename(file, store / file.filename());
  fs::create_symlink(Path("..") / "store" / file.filename(), file);
  const auto open = [&] { open_source(posix_storage(), copy.path()); };
  EXPECT_EQ(thrown_by(open), std::nullopt);
  const test::TempDir elsewhere;
  fs::rename(store / file.filename(), elsewhere.path() / file.filename());
  EXPECT_THAT(error_of(open),
              Fails(ErrorCode::Corrupt, {file.string(), "a link to what is not there"}));
  fs::remove(file);
  fs::create_symlink(elsewhere.path() / file.filename(), file);
  EXPECT_THAT(error_of(open), Fails(ErrorCode::Unsupported, {file.string(), "leads outside"}));
}

/// A model of stage 0 with two trained parameters, whose module is `module`.
void save_stage_0(const Path& tag, const Json& module) {
  fs::create_directories(tag);
  const auto states = [](const char* name) { return Json{{"step", 5}, {"exp_avg", tensor(name)}}; };
  const Json state = {
      {"$type", "builtins.dict"},
      {"pairs", Json::array({Json::array({0, states("a")}), Json::array({1, states("b")})})}};
  const Json optimizer = {{"state", state},
                          {"param_groups", Json::array({{{"lr", 0.5}, {"params", {0, 1}}}})}};
  save_torch(tag / "mp_rank_00_model_states.pt",
             {{"module", module},
              {"buffer_names", Json::array()},
              {"optimizer", optimizer},
              {"global_steps", 5},
              {"dp_world_size", 1}},
             {{"a", {DType::Float32, {2}, {1, 2}}},
              {"b", {DType::Float32, {3}, {3, 4, 5}}},
              {"frozen", {DType::Float32, {4}, {6, 7, 8, 9}}}});
}

TEST(DeepSpeedContradictions, WeightsThatAModuleOfStage0LacksAreLost) {
  const test::TempDir folder;
  save_stage_0(folder.path() / "whole/tag", {{"a", tensor("a")}, {"b", tensor("b")}});
  save_stage_0(folder.path() / "none/tag", {{"a", tensor("a")}, {"b", nullptr}});
  save_stage_0(folder.path() / "absent/tag", {{"a", tensor("a")}});
  const auto weights_lost = [&](const char* name) {
    std::vector<std::string> lost;
    for (const Loss& loss : open_source(posix_storage(), folder.path() / name)->losses()) {
      if (loss.role == Role::Weight) lost.push_back(loss.name);
    }
    return lost;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(weights_lost("whole"), Names{});
  EXPECT_EQ(weights_lost("none"), Names{"b"});
  EXPECT_EQ(weights_lost("absent"), Names{"1 of 2 trained parameters"});
}

TEST(DeepSpeedValues, ReadsTheStageInAllEncodings) {
  using namespace std::string_literals;
  const std::string stage_class = "cdeepspeed.runtime.zero.config\nZeroStageEnum\n";
  const std::array<std::string, 3> pickles = {
      "\x80\x02K\x02."s,
      "\x80\x02" + stage_class + "K\x02\x85R."s,
      "\x80\x02"
      "c__builtin__\ngetattr\n"s +
          stage_class + "X\x09\x00\x00\x00gradients\x86R."s,
  };
  for (const std::string& pickle : pickles)
    EXPECT_EQ(deepspeed::zero_stage(torch::Pickle::parse(pickle, "test")->root()), 2u);
}

TEST(DeepSpeedLayout, ParsesRanksAsNumbers) {
  using deepspeed::FileRole;
  const auto parsed = deepspeed::parse_file_name("bf16_zero_pp_rank_10_mp_rank_02_optim_states.pt");
  EXPECT_EQ(parsed.role, FileRole::Optimizer);
  EXPECT_EQ(parsed.rank, 10u);
  EXPECT_EQ(parsed.model_rank, 2u);
  EXPECT_EQ(deepspeed::parse_file_name("zero_pp_rank_0_mp_rank_00optim_states.pt").role,
            FileRole::Optimizer);
  EXPECT_EQ(deepspeed::parse_file_name("layer_01-model_00-model_states.pt").role, FileRole::Layer);
  EXPECT_EQ(deepspeed::parse_file_name("mp_rank_00_model_states.pt.bak").role, FileRole::Other);
  EXPECT_EQ(deepspeed::parse_file_name("mp_rank_99999999999_model_states.pt").role,
            FileRole::Other);
}

TEST(DeepSpeedLayout, OrdersRanksByNumber) {
  const test::TempDir folder;
  for (int rank = 0; rank < 12; ++rank) write_file(folder.path() / Copy::optimizer_name(rank), "x");
  const auto files = deepspeed::find_files(posix_storage(), folder.path()).model_ranks.at(0);
  ASSERT_EQ(files.optimizers.size(), 12u);
  for (std::uint32_t rank = 0; rank < 12; ++rank) EXPECT_EQ(files.optimizers[rank].first, rank);
}

TEST(DeepSpeedSlotMatcher, FindsTheOnlyWayAndTellsWhenThereAreSeveral) {
  using deepspeed::SlotMatcher;
  const std::string candidates = "abcab";  // a letter is a shape
  const auto match = [&](std::vector<std::string> groups) {
    std::vector<std::size_t> sizes;
    for (const auto& group : groups) sizes.push_back(group.size());
    return SlotMatcher(sizes, candidates.size(), [=](std::size_t g, std::size_t k, std::size_t c) {
      return groups[g][k] == candidates[c];
    });
  };
  using Solution = std::vector<std::vector<std::size_t>>;
  EXPECT_EQ(match({"bca", "ab"}).solution(), (Solution{{1, 2, 3}, {0, 4}}));
  EXPECT_EQ(match({"bca", "ab"}).outcome(), SlotMatcher::Outcome::One);
  EXPECT_EQ(match({"ca"}).solution(), (Solution{{2, 3}}));
  EXPECT_EQ(match({"ab"}).outcome(), SlotMatcher::Outcome::Several);
  EXPECT_NE(match({"ab"}).solution(), match({"ab"}).solution(true));
  EXPECT_EQ(match({"ba", "cb"}).outcome(), SlotMatcher::Outcome::One);
  EXPECT_EQ(match({"cc"}).outcome(), SlotMatcher::Outcome::None);
  EXPECT_EQ(match({"abcabc"}).outcome(), SlotMatcher::Outcome::None);
}

TEST(DeepSpeedFlatGroups, UndoesTheRoundRobinOrder) {
  const std::vector<deepspeed::NamedShape> reordered = {
      {"0", {}}, {"3", {}}, {"1", {}}, {"4", {}}, {"2", {}}};
  const auto original = deepspeed::undo_round_robin(reordered, 3);
  for (std::size_t i = 0; i < original.size(); ++i) EXPECT_EQ(original[i].fqn, std::to_string(i));
}

TEST(DeepSpeedFlatGroups, CutsStage3RangesWithoutOverflow) {
  using deepspeed::stage3_range;
  EXPECT_EQ(stage3_range(11, 0, 4), (ElementRange{0, 3}));
  EXPECT_EQ(stage3_range(11, 3, 4), (ElementRange{9, 11}));
  EXPECT_EQ(stage3_range(3, 2, 4), (ElementRange{2, 3}));
  EXPECT_TRUE(stage3_range(3, 3, 4).empty());
  EXPECT_TRUE(stage3_range(0, 0, 4).empty());
  EXPECT_TRUE(stage3_range(1, 1u << 20, 1u << 20).empty());
}

TEST(DeepSpeedStage0, ParametersWithoutAStateAreARemark) {
  const test::TempDir folder;
  const auto open = [&](const Json& betas) {
    const Json state = {{"exp_avg", tensor("w")}, {"exp_avg_sq", tensor("w")}};
    Json group = {{"params", {0, 1}}, {"lr", 0.1}};
    if (!betas.is_null()) group["betas"] = betas;
    const Path file = folder.path() / "mp_rank_00_model_states.pt";
    fs::remove(file);
    save_torch(file,
               {{"module", {{"a", tensor("w")}, {"b", tensor("b")}}},
                {"optimizer",
                 {{"state", with_number_keys(state)}, {"param_groups", Json::array({group})}}},
                {"buffer_names", Json::array()},
                {"global_steps", 1},
                {"skipped_steps", 0},
                {"dp_world_size", 1}},
               {{"w", {DType::Float32, {2}, {1, 2}}}, {"b", {DType::Float32, {3}, {1, 2, 3}}}});
    return open_source(posix_storage(), folder.path());
  };
  const auto told = testing::Contains(testing::HasSubstr("lists 1 parameters without a state: b"));
  EXPECT_THAT(open({0.9, 0.95})->remarks(), told);
  EXPECT_THAT(open(nullptr)->remarks(), testing::Not(told)) << "of another optimizer";
}

/// DeepSpeed makes the states of an optimizer with a step without gradients where it has masters of
/// 16-bit parameters at stage 0, and before 0.13.2 at every stage.
TEST(DeepSpeedStage0, TheStepThatMakesTheStatesIsNoContradiction) {
  const test::TempDir folder;
  struct Case {
    const char* version;
    bool has_masters;
    int steps;
    bool is_told;
  };
  for (const auto& [version, has_masters, steps, is_told] :
       {Case{"0.19.8", true, 6, false}, Case{"0.19.8", true, 7, false},
        Case{"0.19.8", true, 8, true}, Case{"0.19.8", true, 5, true},
        Case{"0.19.8", false, 6, false}, Case{"0.19.8", false, 7, true},
        Case{"0.13.2+cu121", false, 7, true}, Case{"0.13.1", false, 7, false},
        Case{"0.9.5", false, 7, false}, Case{"0.9.5", false, 8, true}}) {
    Json optimizer = {{"state", with_number_keys({{"step", steps}, {"exp_avg", tensor("w")}})},
                      {"param_groups", Json::array({{{"lr", 0.1}, {"params", Json::array({0})}}})}};
    if (has_masters)
      optimizer = {{"optimizer_state_dict", optimizer},
                   {"fp32_groups", Json::array({Json::array({tensor("w")})})}};
    const Path tag = folder.path() / fmt::format("{}-{}-{}", version, has_masters, steps);
    fs::create_directory(tag);
    save_torch(tag / "mp_rank_00_model_states.pt",
               {{"module", {{"a", tensor("w")}}},
                {"optimizer", optimizer},
                {"buffer_names", Json::array()},
                {"global_steps", 9},
                {"skipped_steps", 3},
                {"ds_version", version},
                {"ds_config", {{"bf16", {{"enabled", has_masters}}}}},
                {"dp_world_size", 1}},
               {{"w", {DType::Float32, {2}, {1, 2}}}});
    const auto source = open_source(posix_storage(), tag);
    EXPECT_EQ(source->catalog().step, steps) << tag;
    const auto told = testing::Contains(
        testing::HasSubstr(fmt::format("the optimizer counts {} steps, the run 6", steps)));
    if (is_told) {
      EXPECT_THAT(notes_of(*source), told) << tag;
    } else {
      EXPECT_THAT(notes_of(*source), testing::IsEmpty()) << tag;
    }
  }
}

TEST(DeepSpeedStage0, AParameterThatIsListedTwiceIsDamage) {
  const test::TempDir folder;
  const Json state = {{"exp_avg", tensor("w")}};
  const Json group = {{"params", {0, 1, 1}}, {"lr", 0.1}};
  const std::map<std::string, Made> tensors = {{"w", {DType::Float32, {2}, {1, 2}}}};
  save_torch(
      folder.path() / "mp_rank_00_model_states.pt",
      {{"module", {{"a", tensor("w")}}},
       {"optimizer", {{"state", with_number_keys(state)}, {"param_groups", Json::array({group})}}},
       {"buffer_names", Json::array()},
       {"global_steps", 1},
       {"skipped_steps", 0},
       {"dp_world_size", 1}},
      tensors);
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder.path()); }),
              Fails(ErrorCode::Corrupt, {"mp_rank_00", "number 1 twice"}));
}

TEST(DeepSpeedStage0, StatesAndMastersThatNoGroupListsAreTold) {
  const test::TempDir folder;
  const Json state = {{"exp_avg", tensor("w")}};
  const auto open = [&](const Json& numbers, const Json& masters) {
    const Path file = folder.path() / "mp_rank_00_model_states.pt";
    fs::remove(file);
    Json optimizer = {{"state", with_number_keys(state)},
                      {"param_groups", Json::array({{{"lr", 0.1}, {"params", numbers}}})}};
    if (!masters.is_null()) optimizer["fp32_groups"] = masters;
    save_torch(file,
               {{"module", {{"a", tensor("w")}}},
                {"optimizer", optimizer},
                {"buffer_names", Json::array()},
                {"global_steps", 1},
                {"dp_world_size", 1}},
               {{"w", {DType::Float32, {2}, {1, 2}}}});
    return open_source(posix_storage(), folder.path());
  };
  EXPECT_TRUE(open({0}, nullptr)->losses().empty());
  const Losses losses = open(Json::array(), nullptr)->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].role, Role::Optimizer);
  EXPECT_THAT(losses[0].why, testing::HasSubstr("no parameter group"));
  const Json masters = Json::array({Json::array({tensor("w")})});
  EXPECT_TRUE(open({0}, masters)->losses().empty());
  EXPECT_THAT(error_of([&] { open(Json::array(), masters); }),
              Fails(ErrorCode::Corrupt, {"mp_rank_00", "nothing tells which master is whose"}));
}

TEST(DeepSpeedSource, GroupsThatAreNotThoseOfThePartitionsLoseTheirSettings) {
  const test::TempDir folder;
  save_old_checkpoint(folder.path() / "tag", true);
  for (int rank = 0; rank < 2; ++rank) {
    const Path file = folder.path() / "tag" / Copy::optimizer_name(rank);
    fs::remove(file);
    Json inner = optimizer_of_rank("master", "avg");
    inner["param_shapes"] = Json::array({{{"a", {2, 2}}, {"b", {3}}}});
    Json& groups = inner["base_optimizer_state"]["param_groups"];
    groups.push_back(groups[0]);
    const std::vector<float> values =
        rank == 0 ? std::vector<float>{1, 2, 3, 4} : std::vector<float>{5, 6, 7};
    const Made made{DType::Float32, {values.size()}, values};
    save_torch(file, {{"optimizer_state_dict", inner}}, {{"master", made}, {"avg", made}});
  }
  const Losses losses = open_source(posix_storage(), folder.path())->losses();
  ASSERT_FALSE(losses.empty());
  EXPECT_EQ(losses[0].role, Role::Setting);
  EXPECT_THAT(losses[0].why, testing::HasSubstr("states of 1 groups, and the settings of 2"));
}

/// The folders hold whole tensors; the model files beside them are those of several model-parallel
/// ranks. expected.safetensors of the run they were made from names tensors "fqn|state".
TEST(DeepSpeedUniversal, OfParallelRunsIsRead) {
  SKIP_WITHOUT_FIXTURES();
  for (const std::string run : {"autotp2_stage1_fp32_phi3", "autotp2dp2_stage3_fp32",
                                "mg_pp2tp2_stage1_bf16_tied", "mg_tp2_stage1_fp32"}) {
    SCOPED_TRACE(run);
    const Path parallel = test::fixtures() / "parallel";
    const auto source =
        open_source(posix_storage(), parallel / ("universal_" + run) / "checkpoint");
    const auto expected = open_source(posix_storage(), parallel / run / "expected.safetensors");
    std::map<std::string, std::size_t> wanted;
    for (std::size_t i = 0; i < expected->catalog().tensors.size(); ++i)
      wanted[expected->catalog().tensors[i].fqn] = i;
    // The buffers of a pipeline's layers are not in the folder.
    const bool has_buffers = run != "mg_pp2tp2_stage1_bf16_tied";
    std::erase_if(wanted, [&](const auto& tensor) {
      return tensor.first.ends_with("|weights") ||
             (!has_buffers && tensor.first.ends_with("|buffer"));
    });
    EXPECT_EQ(source->catalog().tensors.size(), wanted.size());
    for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i) {
      const TensorInfo& tensor = source->catalog().tensors[i];
      const auto found = wanted.find(tensor.fqn + '|' + tensor.state);
      ASSERT_NE(found, wanted.end()) << tensor.label();
      EXPECT_EQ(tensor.group, tensor.state == state::kBuffer ? -1 : 0) << tensor.label();
      EXPECT_EQ(read_all(*source, i), read_all(*expected, found->second)) << tensor.label();
    }
    EXPECT_EQ(source->losses().empty(), has_buffers);
    EXPECT_EQ(source->catalog().step, 3);
  }
}

/// The model files beside zero/ tell the shapes of the ranks' parts, and may hold the parts.
TEST(DeepSpeedUniversal, WholeParametersAreComparedWithThePartsOfTheRanks) {
  SKIP_WITHOUT_FIXTURES();
  for (const std::string run :
       {"universal_autotp2_stage1_fp32_phi3", "universal_mg_tp2_stage1_fp32"})
    EXPECT_TRUE(open_case(run)->notes().empty()) << run;
  const CopiedRun tensors("universal_mg_tp2_stage1_fp32");
  const std::string one = "zero/layers.0.dense.weight/fp32.pt";
  tensors.swap(one, "zero/layers.1.dense.weight/fp32.pt");
  EXPECT_THAT(tensors.open()->notes(),
              testing::Contains(testing::AllOf(testing::HasSubstr("2 parameters"),
                                               testing::HasSubstr("fp32.pt rounds to"))));
  const CopiedRun stages("universal_mg_pp2tp2_stage1_bf16_tied");
  const std::map<std::string, Made> row = {
      {"w", {DType::Float32, {1, 16}, std::vector<float>(16, 1)}}};
  for (const auto& [run, folder] : {std::pair(&tensors, "zero/layers.0.dense_h_to_4h.weight"),
                                    std::pair(&stages, "zero/1.dense_h_to_4h.weight")}) {
    for (const std::string state : {"fp32", "exp_avg", "exp_avg_sq"}) {
      const Path file = run->file(folder) / (state + ".pt");
      fs::remove(file);
      save_torch(file, {{"param", tensor("w")}}, row, state);
    }
    EXPECT_THAT(error_of([&] { run->open(); }),
                Fails(ErrorCode::Corrupt, {"dense_h_to_4h.weight/fp32.pt", "(1, 16)", "(40, 16)"}));
  }
}

TEST(DeepSpeedUniversal, ModelFilesOfTwoStepsAreSaid) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun run("universal_mg_tp2_stage1_fp32");
  const auto remarks = [&] { return run.open()->remarks(); };
  EXPECT_THAT(remarks(), testing::Not(testing::Contains(testing::HasSubstr("global steps"))));
  const Path file = run.file("mp_rank_01_model_states.pt");
  fs::remove(file);
  save_torch(file,
             {{"module", Json::object()},
              {"buffer_names", Json::array()},
              {"global_steps", 7},
              {"skipped_steps", 0},
              {"dp_world_size", 1},
              {"mp_world_size", 2}},
             {}, "mp_rank_01_model_states");
  EXPECT_THAT(remarks(), testing::Contains(testing::HasSubstr("is of 7 global steps, and")));
}

/// ds_to_universal writes the module's buffers, cast to float32, below zero/ too.
TEST(DeepSpeedUniversal, CopiesOfTheModulesEntriesAreCompared) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir temp;
  std::filesystem::copy(test::fixtures() / "deepspeed" / "universal_stage1" / "checkpoint",
                        temp.path() / "run", std::filesystem::copy_options::recursive);
  EXPECT_TRUE(open_source(posix_storage(), temp.path() / "run")->notes().empty());
  const Path copy = temp.path() / "run" / "global_step3" / "zero" / "running" / "fp32.pt";
  const std::map<std::string, Made> other = {{"w", {DType::Float32, {3}, {9, 9, 9}}}};
  std::filesystem::remove(copy);
  save_torch(copy, {{"param", {{"$tensor", "w"}}}}, other);
  EXPECT_THAT(open_source(posix_storage(), temp.path() / "run")->notes(),
              testing::Contains(
                  testing::AllOf(testing::HasSubstr("zero/"), testing::HasSubstr("running"))));
}

TEST(DeepSpeedUniversal, FilesThatAreMissingOrInThePlaceOfOthersAreTold) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir temp;
  const Path run = temp.path() / "run";
  fs::copy(fixtures() / "deepspeed" / "universal_stage2" / "checkpoint", run,
           fs::copy_options::recursive);
  const Path folder = run / "global_step3" / "zero" / "blocks.0.norm1.bias";
  write_file(folder / "._fp32.pt", "what a file manager leaves");
  const Path settings = run / "global_step3" / "zero" / "optimizer_state.pt";
  EXPECT_TRUE(open_source(posix_storage(), run)->losses().empty());
  fs::rename(settings, run / "elsewhere.pt");
  EXPECT_THAT(lines_of(open_source(posix_storage(), run)->losses()),
              testing::Contains(testing::HasSubstr("zero/optimizer_state.pt")));
  fs::copy_file(folder / "exp_avg.pt", settings);
  EXPECT_THAT(lines_of(open_source(posix_storage(), run)->losses()),
              testing::Contains(testing::HasSubstr("it has no param_groups")));
  write_file(settings, "");
  EXPECT_THAT(lines_of(open_source(posix_storage(), run)->losses()),
              testing::Contains(testing::AllOf(testing::HasSubstr("zero/optimizer_state.pt"),
                                               testing::HasSubstr("damaged"))));
  fs::remove(settings);
  fs::rename(run / "elsewhere.pt", settings);
  swap_files(folder / "fp32.pt", folder / "exp_avg_sq.pt");
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), run); }),
              Fails(ErrorCode::Corrupt, {"fp32", "it was written as"}));
}

/// A model needs its masters only: what is lost of the states is told, and ends no verb that asks
/// for weights.
TEST(DeepSpeedUniversal, StatesThatAreMissingOrDamagedAreLostWithAllOthers) {
  SKIP_WITHOUT_FIXTURES();
  const auto make = [](const Path& file, const char* how) {
    const std::string bytes = read_file(file);
    fs::remove(file);
    if (how == std::string("a folder")) fs::create_directory(file);
    if (how == std::string("half")) write_file(file, bytes.substr(0, bytes.size() / 2));
    if (how == std::string("empty")) write_file(file, "");
  };
  for (const char* state : {"exp_avg.pt", "step.pt"}) {
    for (const char* how : {"missing", "a folder", "half", "empty"}) {
      const Copy copy("universal_stage2");
      make(copy.tag() / "zero/norm.bias" / state, how);
      const auto source = open_source(posix_storage(), copy.path());
      const Losses losses = source->losses();
      ASSERT_EQ(losses.size(), 1u) << how;
      EXPECT_EQ(losses[0].role, Role::Optimizer);
      EXPECT_EQ(losses[0].name, std::string("zero/norm.bias/") + state);
      EXPECT_TRUE(losses[0].is_broken);
      EXPECT_TRUE(source->catalog().find("norm.bias", state::kFp32));
      for (const TensorInfo& tensor : source->catalog().tensors)
        EXPECT_NE(tensor.state, state::kExpAvg) << "states of some parameters are of no use";
    }
  }
}

/// Adam has both moments of every parameter.
TEST(DeepSpeedUniversal, MomentsThatAllParametersLackAreLost) {
  SKIP_WITHOUT_FIXTURES();
  const std::vector<std::vector<std::string>> cases = {
      {"exp_avg.pt"}, {"exp_avg_sq.pt"}, {"exp_avg.pt", "exp_avg_sq.pt"}};
  for (const auto& moments : cases) {
    for (const char* name : {"universal_stage2", "universal_stage3"}) {
      SCOPED_TRACE(moments.front() + " of " + name);
      const Copy copy(name);
      std::set<std::string> wanted, found;
      for (const std::string& moment : moments) {
        wanted.insert("zero/*/" + moment);
        for (const auto& entry : fs::directory_iterator(copy.tag() / "zero")) {
          if (entry.is_directory()) fs::remove(entry.path() / moment);
        }
      }
      const auto source = open_source(posix_storage(), copy.path());
      for (const Loss& loss : source->losses()) {
        EXPECT_EQ(loss.role, Role::Optimizer);
        EXPECT_TRUE(loss.is_broken);
        found.insert(loss.name);
      }
      EXPECT_EQ(found, wanted);
      for (const TensorInfo& tensor : source->catalog().tensors)
        EXPECT_FALSE(tensor.state.starts_with("exp_avg")) << tensor.label();
    }
  }
}

TEST(DeepSpeedContradictions, StatesOfAShapeThatTheModuleLacksAreNoted) {
  const test::TempDir folder;
  save_stage_0(folder.path() / "whole/tag",
               {{"a", tensor("a")}, {"b", tensor("b")}, {"frozen", tensor("a")}});
  save_stage_0(folder.path() / "cut/tag", {{"a", tensor("a")}, {"frozen", tensor("frozen")}});
  EXPECT_TRUE(notes_of(*open_source(posix_storage(), folder.path() / "whole")).empty());
  EXPECT_THAT(notes_of(*open_source(posix_storage(), folder.path() / "cut")),
              testing::Contains(testing::HasSubstr("more parameters of size (3)")));
}

TEST(DeepSpeedContradictions, AModelOfStage0WithoutItsMastersIsNoted) {
  const test::TempDir folder;
  const auto notes_with = [&](const Json& config, int steps = 0) {
    fs::remove_all(folder.path() / "tag");
    fs::create_directories(folder.path() / "tag");
    save_torch(folder.path() / "tag/mp_rank_00_model_states.pt",
               {{"module", {{"a", tensor("a")}}},
                {"buffer_names", Json::array()},
                {"optimizer", nullptr},
                {"global_steps", steps},
                {"ds_config", config}},
               {{"a", {DType::BFloat16, {2}, {}}}});
    return notes_of(*open_source(posix_storage(), folder.path()));
  };
  const Json adam = {{"type", "Adam"}}, on = {{"enabled", true}};
  EXPECT_THAT(notes_with({{"bf16", on}, {"optimizer", adam}}),
              testing::ElementsAre(testing::AllOf(testing::HasSubstr("has no optimizer"),
                                                  testing::HasSubstr("bf16"))));
  EXPECT_EQ(notes_with({{"fp16", on}, {"optimizer", adam}}).size(), 1u);
  EXPECT_TRUE(notes_with({{"bf16", on}}).empty()) << "for inference";
  EXPECT_TRUE(notes_with({{"optimizer", adam}}).empty()) << "the module has the fp32 weights";
  EXPECT_THAT(notes_with({{"optimizer", adam}}, 4),
              testing::ElementsAre(testing::HasSubstr("the states of the optimizer are lost")));
}

TEST(DeepSpeedContradictions, CopiesOfMastersThatWereSwappedOutAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  struct Case {
    const char *from, *to;
  };
  for (const Case& c : {Case{"rank01/0_4", "rank00/0_4"}, {"rank00/0_4", "rank00/5_14"}}) {
    SCOPED_TRACE(c.from);
    const Copy copy("stage3_nvme_swapped");
    const auto file = [&](const std::string& name) {
      return copy.tag() / "offloaded_tensors" / (name + ".tensor.swp");
    };
    replace(file(c.to), file(c.from));
    EXPECT_THAT(error_of([&] { open_source(posix_storage(), copy.path()); }),
                Fails(ErrorCode::Corrupt, {c.from, c.to, "a copy of the other"}));
  }
}

TEST(DeepSpeedContradictions, StatesOnNvmeWithTheBytesOfAnotherAreSaid) {
  SKIP_WITHOUT_FIXTURES();
  using Copies = std::vector<std::pair<std::string, std::string>>;
  const auto doubts = [](const Copies& copies) {
    const Copy copy("stage3_nvme_swapped");
    const Path folder = copy.tag() / "offloaded_tensors";
    for (const auto& [to, from] : copies)
      replace(folder / (to + ".tensor.swp"), folder / (from + ".tensor.swp"));
    return open_source(posix_storage(), copy.path())->remarks();
  };
  const auto are_named = [](const std::string& one, const std::string& other) {
    return testing::Contains(testing::AllOf(testing::HasSubstr(one + ".tensor.swp"),
                                            testing::HasSubstr(other + ".tensor.swp"),
                                            testing::HasSubstr("have the bytes of another")));
  };
  const auto is_copy = testing::HasSubstr("have the bytes of another");
  EXPECT_THAT(doubts({}), testing::Not(testing::Contains(is_copy)));
  EXPECT_THAT(doubts({{"rank00/exp_avg_sq-5_14", "rank00/exp_avg-5_14"}}),
              are_named("rank00/exp_avg_sq-5_14", "rank00/exp_avg-5_14"));
  EXPECT_THAT(doubts({{"rank00/15_24", "rank00/exp_avg-15_24"}}),
              are_named("rank00/15_24", "rank00/exp_avg-15_24"));
  EXPECT_THAT(doubts({{"rank01/exp_avg-5_14", "rank00/exp_avg-5_14"}}),
              are_named("rank01/exp_avg-5_14", "rank00/exp_avg-5_14"));
  const Copies both = {{"rank01/exp_avg-5_14", "rank00/exp_avg-5_14"},
                       {"rank01/exp_avg_sq-5_14", "rank00/exp_avg_sq-5_14"}};
  EXPECT_THAT(doubts(both), testing::Not(testing::Contains(is_copy))) << "equal gradients";
}

TEST(DeepSpeedSource, ARunThatExcludedItsFrozenParametersSaysSo) {
  SKIP_WITHOUT_FIXTURES();
  const auto remarks = [](const char* run) {
    return open_source(posix_storage(), fixtures() / "deepspeed" / run / "checkpoint")->remarks();
  };
  const auto says_so = testing::Contains(testing::HasSubstr("exclude_frozen_parameters"));
  EXPECT_THAT(remarks("stage2_exclude_frozen"), says_so);
  EXPECT_THAT(remarks("stage3_exclude_frozen"), says_so);
  EXPECT_THAT(remarks("stage2_two_groups_frozen_tied"), testing::Not(says_so));
  EXPECT_THAT(remarks("stage3_w2"), testing::Not(says_so));
  EXPECT_THAT(remarks("stage1_w2"), testing::Not(says_so));
}

TEST(DeepSpeedContradictions, SquaresOnNvmeAreNotNegative) {
  SKIP_WITHOUT_FIXTURES();
  const Copy copy("stage3_nvme_swapped");
  const Path folder = copy.tag() / "offloaded_tensors/rank01";
  swap_files(folder / "exp_avg_sq-15_24.tensor.swp", folder / "exp_avg-15_24.tensor.swp");
  EXPECT_THAT(open_source(posix_storage(), copy.path())->remarks(),
              testing::Contains(testing::AllOf(testing::HasSubstr("hold negative numbers"),
                                               testing::HasSubstr("rank01/exp_avg_sq-15_24"))));
}

TEST(DeepSpeedContradictions, StatesOnNvmeThatLostTheirContentAreSaid) {
  SKIP_WITHOUT_FIXTURES();
  using Files = std::vector<std::string>;
  const std::string kZeros = "hold only zeros", kEnd = "end with zeros";
  struct Case {
    Files zeroed;
    std::size_t from = 0;  ///< the first byte that is zero
    std::string said = {};
    Files named = {};
  };
  const Files moments = {"rank00/exp_avg-5_14", "rank00/exp_avg_sq-5_14"};
  const Files both = {"rank00/exp_avg-5_14", "rank00/exp_avg_sq-5_14", "rank01/exp_avg-5_14",
                      "rank01/exp_avg_sq-5_14"};
  Files all;
  const Copy whole("stage3_nvme_swapped");
  const auto folder_of = [](const Copy& copy) { return copy.tag() / "offloaded_tensors"; };
  const std::string suffix = ".tensor.swp";
  for (const auto& entry : fs::recursive_directory_iterator(folder_of(whole))) {
    std::string name = fs::relative(entry.path(), folder_of(whole)).string();
    if (name.ends_with(suffix)) all.push_back(name.substr(0, name.size() - suffix.size()));
  }
  const std::vector<Case> cases = {
      {{}},
      {{"rank01/0_4"}, 0, kZeros, {"rank01/0_4"}},
      {{"rank00/exp_avg-15_24"}, 0, kZeros, {"rank00/exp_avg-15_24"}},
      {{"rank01/exp_avg_sq-5_14"}, 0, kZeros, {"rank01/exp_avg_sq-5_14"}},
      {moments, 0, kZeros, moments},
      {both, 0},  // parameters without gradients
      {all, 0, "18 files of states on NVMe " + kZeros},
      {{"rank00/15_24"}, 404, kEnd, {"rank00/15_24"}},
      {{"rank00/exp_avg-15_24"}, 404, kEnd, {"rank00/exp_avg-15_24"}},
      {{"rank00/exp_avg-15_24", "rank00/exp_avg_sq-15_24"}, 404},  // dead ends of parameters
  };
  for (const Case& c : cases) {
    const Copy copy("stage3_nvme_swapped");
    for (const std::string& name : c.zeroed) {
      const Path file = folder_of(copy) / (name + suffix);
      std::string bytes = read_file(file);
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(c.from), bytes.end(), '\0');
      write_file(file, bytes);
    }
    const auto source = open_source(posix_storage(), copy.path());
    std::vector<std::string> doubts = source->remarks();
    std::erase_if(doubts, [](const std::string& line) {
      return line.find("files of states on NVMe") == std::string::npos;
    });
    SCOPED_TRACE(c.zeroed.empty() ? "whole" : c.zeroed.front());
    ASSERT_EQ(doubts.size(), c.said.empty() ? 0u : 1u) << testing::PrintToString(doubts);
    if (c.said.empty()) continue;
    EXPECT_THAT(doubts.front(), testing::HasSubstr(c.said));
    for (const std::string& name : c.named)
      EXPECT_THAT(doubts.front(), testing::HasSubstr(name + suffix));
  }
}

TEST(DeepSpeedContradictions, ValuesThatRanksShouldShareAreCompared) {
  deepspeed::RankContent first, other;
  first.model_name = "one.pt";
  other.model_name = "two.pt";
  const auto notes = [&] {
    deepspeed::Notes found;
    note_differing_facts(first, other, found);
    return found.lines();
  };
  first.parts.catalog.client_state = {{"iteration", 3}, {"args", {{"rank", 0}}}, {"more", 1}};
  other.parts.catalog.client_state = {{"iteration", 3}, {"args", {{"rank", 1}}}};
  EXPECT_TRUE(notes().empty());
  other.parts.catalog.client_state["iteration"] = 4;
  other.parts.catalog.scheduler = {{"last_batch_iteration", 3}};
  other.parts.catalog.config = {{"train_batch_size", 3}};
  EXPECT_THAT(notes(),
              testing::ElementsAre(testing::HasSubstr("lr_scheduler differs between one.pt"),
                                   testing::HasSubstr("ds_config differs"),
                                   testing::HasSubstr("the client state differs")));
}

TEST(DeepSpeedContradictions, SchedulesAndConfigurationsOfRanksAreCompared) {
  const test::TempDir folder;
  const FrozenPart none{.shapes = Json::object(), .elements = std::nullopt};
  save_stage_3(folder.path() / "tag", {none, none}, {.has_own_facts = true});
  EXPECT_THAT(notes_of(*open_source(posix_storage(), folder.path())),
              testing::IsSupersetOf({testing::HasSubstr("lr_scheduler differs between ranks"),
                                     testing::HasSubstr("ds_config differs between ranks")}));
}

/// Writes a state's file again, in another shape or type.
void write_state(const Path& file, DType dtype, const Shape& shape) {
  fs::remove(file);
  const std::map<std::string, Made> tensors = {
      {"p", {dtype, shape, std::vector<float>(element_count(shape), 0.5f)}}};
  save_torch(file, {{"param", tensor("p")}}, tensors);
}

/// No model file of a tensor-parallel run tells the shape of a whole parameter.
TEST(DeepSpeedUniversal, AMasterOfAnotherShapeThanTheMomentsIsRefused) {
  SKIP_WITHOUT_FIXTURES();
  for (const Shape& shape : {Shape{1, 16}, Shape{8}, Shape{32}}) {
    const CopiedRun run("universal_mg_tp2_stage1_fp32");
    write_state(run.file("zero/final_layernorm.bias/fp32.pt"), DType::Float32, shape);
    EXPECT_THAT(error_of([&] { run.open(); }),
                Fails(ErrorCode::Corrupt, {"zero/final_layernorm.bias/fp32.pt",
                                           "the model files of the ranks", "shape"}));
  }
  const CopiedRun run("universal_mg_tp2_stage1_fp32");
  write_state(run.file("zero/final_layernorm.bias/exp_avg.pt"), DType::Float32, {1, 16});
  EXPECT_THAT(lines_of(run.open()->losses()),
              testing::Contains(testing::AllOf(
                  testing::HasSubstr("zero/final_layernorm.bias/exp_avg.pt"),
                  testing::HasSubstr("shape (1, 16), but the parameter's is (16)"))));
}

TEST(DeepSpeedUniversal, StatesThatHoldNoFloatsAreDamaged) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun run("universal_mg_tp2_stage1_fp32");
  const Path folder = run.file("zero/final_layernorm.bias");
  write_state(folder / "exp_avg.pt", DType::Int32, {16});
  EXPECT_THAT(
      lines_of(run.open()->losses()),
      testing::Contains(testing::AllOf(testing::HasSubstr("zero/final_layernorm.bias/exp_avg.pt"),
                                       testing::HasSubstr("int32"))));
  write_state(folder / "fp32.pt", DType::Int32, {16});
  EXPECT_THAT(error_of([&] { run.open(); }),
              Fails(ErrorCode::Corrupt, {"zero/final_layernorm.bias/fp32.pt", "int32"}));
}

TEST(DeepSpeedUniversal, AStateOfAnotherParameterIsLost) {
  SKIP_WITHOUT_FIXTURES();
  const Copy copy("universal_stage2");
  replace(copy.tag() / "zero/tok.weight/exp_avg.pt", copy.tag() / "zero/norm.bias/exp_avg.pt");
  swap_files(copy.tag() / "zero/norm.weight/exp_avg.pt",
             copy.tag() / "zero/norm.weight/exp_avg_sq.pt");
  const std::vector<std::string> lines =
      lines_of(open_source(posix_storage(), copy.path())->losses());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[2], testing::AllOf(testing::HasSubstr("zero/norm.weight/exp_avg_sq.pt"),
                                       testing::HasSubstr("it was written as")));
  EXPECT_THAT(lines[0], testing::AllOf(testing::HasSubstr("zero/tok.weight/exp_avg.pt"),
                                       testing::HasSubstr("shape (11)")));
}

TEST(DeepSpeedUniversal, ACopyOfAnotherParametersMomentIsLost) {
  SKIP_WITHOUT_FIXTURES();
  const Copy copy("universal_stage2");
  const Path zero = copy.tag() / "zero";
  replace(zero / "blocks.0.attn.qkv.weight/exp_avg.pt",
          zero / "blocks.1.attn.qkv.weight/exp_avg.pt");
  EXPECT_THAT(lines_of(open_source(posix_storage(), copy.path())->losses()),
              testing::ElementsAre(testing::HasSubstr("a copy of zero/blocks.0")));
  const auto second = testing::Contains(testing::HasSubstr("the same exp_avg_sq and not the same"));
  EXPECT_THAT(open_source(posix_storage(), copy.path())->remarks(), testing::Not(second));
  const Copy other("universal_stage2");
  replace(other.tag() / "zero/blocks.0.attn.qkv.weight/exp_avg_sq.pt",
          other.tag() / "zero/blocks.1.attn.qkv.weight/exp_avg_sq.pt");
  EXPECT_THAT(open_source(posix_storage(), other.path())->remarks(), second);
  // Parameters with the same gradients have both moments in common.
  replace(zero / "blocks.0.attn.qkv.weight/exp_avg_sq.pt",
          zero / "blocks.1.attn.qkv.weight/exp_avg_sq.pt");
  EXPECT_TRUE(open_source(posix_storage(), copy.path())->losses().empty());
}

/// The Trainer writes trainer_state.json beside the folder of DeepSpeed, after it.
TEST(DeepSpeedSource, AFolderOfTheTrainerIsHeldAgainstItsState) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir run;
  const Path whole = run.path() / "checkpoint-2", folder = run.path() / "checkpoint-3";
  for (const Path& each : {whole, folder}) {
    test::copy_folder(case_folder("stage2_w2") / "checkpoint", each);
    write_file(each / "trainer_state.json", R"({"global_step": 3})");
  }
  const auto losses = [&] { return lines_of(open_source(posix_storage(), folder)->losses()); };
  const auto of_state = testing::Contains(testing::HasSubstr("trainer_state.json"));
  EXPECT_THAT(losses(), testing::Not(of_state));
  write_file(folder / "trainer_state.json", "");
  EXPECT_THAT(losses(), testing::Contains(testing::HasSubstr("not valid JSON")));
  fs::remove(folder / "trainer_state.json");
  EXPECT_THAT(losses(), testing::Contains(testing::HasSubstr("the save did not finish")));
  fs::remove(whole / "trainer_state.json");
  EXPECT_THAT(losses(), testing::Not(of_state));
}

TEST(DeepSpeedUniversal, ACopyOfAnotherParametersMasterIsDoubtedWhereNoModuleTells) {
  SKIP_WITHOUT_FIXTURES();
  const auto is_said = testing::Contains(testing::HasSubstr("the same fp32.pt and not the same"));
  const auto remarks = [](const Copy& copy) {
    return open_source(posix_storage(), copy.path())->remarks();
  };
  const auto copy_state = [](const Copy& copy, const std::string& file) {
    replace(copy.tag() / "zero/blocks.0.attn.qkv.weight" / file,
            copy.tag() / "zero/blocks.1.attn.qkv.weight" / file);
  };
  const Copy copy("universal_stage3");
  EXPECT_THAT(remarks(copy), testing::Not(is_said));
  copy_state(copy, "fp32.pt");
  EXPECT_THAT(remarks(copy), is_said);
  // Parameters that are trained alike have the moments in common too.
  copy_state(copy, "exp_avg.pt");
  copy_state(copy, "exp_avg_sq.pt");
  EXPECT_THAT(remarks(copy), testing::Not(is_said));
  // The module is compared instead.
  const Copy second("universal_stage2");
  copy_state(second, "fp32.pt");
  EXPECT_THAT(remarks(second), testing::Not(is_said));
}

/// The model files of all ranks of a parallel run list its parameters.
TEST(DeepSpeedUniversal, FoldersAndRanksThatDoNotBelongTogetherAreNamed) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir temp;
  const Path run = temp.path() / "run", tag = run / "global_step3";
  fs::copy(fixtures() / "parallel" / "universal_mg_tp2_stage1_fp32" / "checkpoint", run,
           fs::copy_options::recursive);
  fs::copy(tag / "zero/layers.0.dense.weight", temp.path() / "copy");
  fs::rename(temp.path() / "copy", tag / "zero/layers.0.dense.weight/0");
  fs::remove(tag / "mp_rank_01_model_states.pt");
  std::map<std::string, Role> found;
  for (const Loss& loss : open_source(posix_storage(), run)->losses())
    found.emplace(loss.name, loss.role);
  EXPECT_EQ(found, (std::map<std::string, Role>{{"layers.0.dense.weight/0", Role::Weight},
                                                {"mp_rank_*_model_states.pt", Role::SideFile}}));
}

/// At stage 3 every rank has a model file with the buffers.
TEST(DeepSpeedUniversal, BuffersOfAllRanksAreCompared) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir temp;
  const Path run = temp.path() / "run";
  std::filesystem::copy(
      test::fixtures() / "deepspeed" / "universal_stage3_sub_groups" / "checkpoint", run,
      std::filesystem::copy_options::recursive);
  EXPECT_TRUE(open_source(posix_storage(), run)->notes().empty());
  const Path file = run / "global_step3" / "zero_pp_rank_1_mp_rank_00_model_states.pt";
  const torch::TorchFile model(torch::whole_file(posix_storage(), file));
  const auto view = deepspeed::tensor_of(model, model.root().at("module").at("running"), "it");
  test::flip_bits(file, view.storage->window.begin + view.offset * size_of(view.dtype));
  EXPECT_THAT(open_source(posix_storage(), run)->notes(),
              testing::Contains(testing::HasSubstr("buffer running differs between ranks")));
}

/// The folder of a tensor-parallel run with a parameter that was not trained: the model files have
/// its parts, and ds_to_universal copies that of the first rank, or nothing.
TEST(DeepSpeedUniversal, FrozenPartsOfTensorParallelRanksAreNoWholeWeights) {
  const test::TempDir run;
  const Path tag = run.path() / "global_step5";
  const DType f32 = DType::Float32;
  for (int rank = 0; rank < 2; ++rank) {
    const auto at = static_cast<float>(rank);
    fs::create_directories(tag);
    save_torch(tag / ("mp_rank_0" + std::to_string(rank) + "_model_states.pt"),
               {{"module",
                 {{"a", tensor("a")}, {"f", tensor("f")}, {"g", tensor("g")}, {"n", tensor("n")}}},
                {"buffer_names", Json::array()},
                {"param_shapes", Json::array({{{"a", {1}}}})},
                {"global_steps", 5},
                {"dp_world_size", 1},
                {"mp_world_size", 2}},
               {{"a", {f32, {1}, {at}}},
                {"f", {f32, {1}, {at}}},
                {"g", {f32, {1}, {at}}},
                {"n", {f32, {1}, {7}}}});
  }
  const auto save_state = [&](const char* fqn, const char* file, std::vector<float> values) {
    fs::create_directories(tag / "zero" / fqn);
    const std::map<std::string, Made> tensors = {{"p", {f32, {values.size()}, values}}};
    save_torch(tag / "zero" / fqn / file, {{"param", tensor("p")}}, tensors);
  };
  save_state("a", "fp32.pt", {0, 1});
  save_state("a", "exp_avg.pt", {0, 1});
  save_state("f", "fp32.pt", {0});  // the first rank's part
  save_state("n", "fp32.pt", {7});  // the same on all ranks
  const auto source = open_source(posix_storage(), run.path());
  std::map<std::string, std::string> lost;
  for (const Loss& loss : source->losses()) {
    if (is_weight(loss.role)) lost.emplace(loss.name, loss.why);
  }
  ASSERT_EQ(lost.size(), 2u);
  EXPECT_THAT(lost["f"], testing::HasSubstr("the part of one tensor-parallel rank"));
  EXPECT_THAT(lost["g"], testing::HasSubstr("zero/ has no folder of it"));
  EXPECT_EQ(floats_of(*source, "n", "weights"), (std::vector<float>{7}));
  EXPECT_EQ(floats_of(*source, "a", "fp32"), (std::vector<float>{0, 1}));
}

}  // namespace
}  // namespace unishard::converters
