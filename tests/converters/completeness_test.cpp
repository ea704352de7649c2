// A folder is complete, or it is named as incomplete: numbered shards with and without an index,
// files of ranks, parts of parallel models, and files that are named alone.
#include "reading/completeness.hpp"

#include "unishard/converters/registry.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "rank_file_writer.hpp"
#include "read_source.hpp"
#include "reading/part_names.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"
#include "write_example_file.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
using test::read_file;
using test::TempDir;
using test::write_file;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;

/// A safetensors file of float32 vectors.
void save_vectors(const Path& file, const std::map<std::string, std::vector<float>>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, values] : tensors) {
    const std::size_t begin = data.size(), bytes = values.size() * sizeof(float);
    data.resize(begin + bytes);
    std::memcpy(data.data() + begin, values.data(), bytes);
    header[name] = {
        {"dtype", "F32"}, {"shape", {values.size()}}, {"data_offsets", {begin, begin + bytes}}};
  }
  const std::string text = header.dump();
  std::string bytes(8, '\0');
  const std::uint64_t size = text.size();
  std::memcpy(bytes.data(), &size, sizeof size);
  write_file(file, bytes + text + data);
}

/// A torch.save file of the same.
void save_torch_vectors(const Path& file,
                        const std::map<std::string, std::vector<float>>& tensors) {
  Json object = Json::object();
  std::map<std::string, Made> made;
  for (const auto& [name, values] : tensors) {
    object[name] = tensor(name);
    made[name] = {DType::Float32, {values.size()}, values};
  }
  save_torch(file, object, made);
}

std::vector<float> floats_of(const Source& source, const std::string& fqn) {
  const auto& tensors = source.catalog().tensors;
  const auto found = std::ranges::find(tensors, fqn, &TensorInfo::fqn);
  if (found == tensors.end()) return {};
  const auto bytes = read_all(source, static_cast<std::size_t>(found - tensors.begin()));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::unique_ptr<Source> open(const Path& path) { return open_source(posix_storage(), path); }
Error refusal(const Path& path) {
  return error_of([&] { open(path); });
}

/// The names and roles of what is not read.
std::map<std::string, Role> unread_in(const Path& folder) {
  std::map<std::string, Role> roles;
  for (const Loss& loss : open(folder)->losses()) roles.emplace(loss.name, loss.role);
  return roles;
}

TEST(BrokenFiles, AModelThatIsALinkToNothingIsNeverAnotherFile) {
  for (const char* model : {"model.safetensors", "model.safetensors.index.json", "b.safetensors"}) {
    for (const char* other : {"adapter_model.safetensors", "other.safetensors", "none"}) {
      if (std::string_view(model) == "b.safetensors" && other[0] == 'a') continue;
      SCOPED_TRACE(std::string(model) + " beside " + other);
      const TempDir folder;
      std::filesystem::create_symlink("gone", folder.path() / model);
      save_vectors(folder.path() / other, {{"w", {1, 2}}});
      EXPECT_THAT(refusal(folder.path()),
                  Fails(ErrorCode::Corrupt, AllOf(HasSubstr(model), HasSubstr("a link to"))));
    }
  }
  const TempDir folder;
  std::filesystem::create_directory(folder.path() / "model.safetensors");
  EXPECT_THAT(refusal(folder.path()), Fails(ErrorCode::Corrupt, HasSubstr("is a folder")));
  std::filesystem::create_symlink("gone", folder.path() / "link.pt");
  EXPECT_THAT(refusal(folder.path() / "link.pt"),
              Fails(ErrorCode::NotFound, HasSubstr("a link to what is not there")));
}

TEST(BrokenFiles, AnOptimizerThatIsALinkToNothingIsNamed) {
  const TempDir folder;
  save_vectors(folder.path() / "model.safetensors", {{"w", {1, 2}}});
  std::filesystem::create_symlink("gone", folder.path() / "optimizer.pt");
  std::filesystem::create_symlink("gone", folder.path() / "value_head.bin");
  const Losses losses = open(folder.path())->losses();
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_TRUE(losses[0].is_broken && losses[1].is_broken);
  EXPECT_EQ(unread_in(folder.path()),
            (std::map<std::string, Role>{{"optimizer.pt", Role::Optimizer},
                                         {"value_head.bin", Role::OtherModel}}));
}

TEST(FilesBeside, ADistributedSaveInAModelsFolderIsNamed) {
  const TempDir folder;
  save_vectors(folder.path() / "model.safetensors", {{"w", {1, 2}}});
  for (const char* name : {"dcp/.metadata", "dcp/__0_0.distcp"})
    write_file(folder.path() / name, "x");
  EXPECT_EQ(unread_in(folder.path()), (std::map<std::string, Role>{{"dcp", Role::OtherModel}}));
}

/// What open() says of "checkpoint-4" beside "checkpoint-2", which the program has finished.
std::map<std::string, Role> unread_beside_a_finished(const char* last, const char* in_both) {
  const TempDir run;
  for (const char* name : {"checkpoint-2", "checkpoint-4"}) {
    save_vectors(run.path() / name / "model.safetensors", {{"w", {1, 2}}});
    if (in_both != nullptr) write_file(run.path() / name / in_both, "{}");
  }
  if (last != nullptr) write_file(run.path() / "checkpoint-2" / last, "{}");
  EXPECT_THAT(unread_in(run.path() / "checkpoint-2"),
              testing::Not(testing::Contains(testing::Pair(testing::_, Role::Optimizer))));
  return unread_in(run.path() / "checkpoint-4");
}

TEST(FilesBeside, ASaveThatDidNotEndIsNamed) {
  using Unread = std::map<std::string, Role>;
  EXPECT_EQ(unread_beside_a_finished(nullptr, nullptr), Unread()) << "models alone";
  EXPECT_EQ(unread_beside_a_finished("trainer_state.json", nullptr),
            (Unread{{"trainer_state.json", Role::Optimizer}}));
  EXPECT_EQ(unread_beside_a_finished("random_states_0.pkl", nullptr),
            (Unread{{"random_states_0.pkl", Role::Optimizer}}));
  const TempDir run;
  const Path alone = run.path() / "checkpoint-4";
  save_vectors(alone / "model.safetensors", {{"w", {1, 2}}});
  write_file(alone / "training_args.bin", "x");
  EXPECT_THAT(unread_in(alone),
              testing::Contains(testing::Pair("trainer_state.json", Role::Optimizer)));
}

TEST(FilesBeside, AFolderOfDeepSpeedThatIsGoneIsNamed) {
  const TempDir folder;
  save_vectors(folder.path() / "model.safetensors", {{"w", {1, 2}}});
  write_file(folder.path() / "latest", "global_step4");
  const std::map<std::string, Role> lost = {{"global_step4", Role::Optimizer}};
  EXPECT_EQ(unread_in(folder.path()), lost);
  std::filesystem::create_directory(folder.path() / "global_step4");
  EXPECT_EQ(unread_in(folder.path()), lost);
}

TEST(FilesBeside, AScheduleWithoutTheOptimizerOfAWholeModelIsNamed) {
  const TempDir folder;
  save_torch_vectors(folder.path() / "pytorch_model_fsdp.bin", {{"w", {1, 2}}});
  EXPECT_EQ(unread_in(folder.path()).count("optimizer.bin"), 0u);
  save_torch(folder.path() / "scheduler.bin", {{"last_epoch", 3}}, {});
  EXPECT_EQ(unread_in(folder.path()).at("optimizer.bin"), Role::SideFile);
}

TEST(FilesBeside, ATrainersScheduleBesideAFolderOfDeepSpeedIsNamed) {
  const TempDir run;
  std::filesystem::copy(Path(UNISHARD_TEST_DATA) / "golden/deepspeed/tied_stage0_bf16",
                        run.path() / "checkpoint-4", std::filesystem::copy_options::recursive);
  EXPECT_EQ(unread_in(run.path() / "checkpoint-4").count("scheduler.pt"), 0u);
  write_file(run.path() / "checkpoint-4/scheduler.pt", "x");
  EXPECT_EQ(unread_in(run.path() / "checkpoint-4").at("scheduler.pt"), Role::SideFile);
}

/// The formats whose shards are joined, and how a shard is written.
struct ShardFormat {
  std::string suffix;
  void (*save)(const Path&, const std::map<std::string, std::vector<float>>&);
};
class Shards : public testing::TestWithParam<ShardFormat> {
 protected:
  void save(const std::string& name, const std::map<std::string, std::vector<float>>& tensors) {
    GetParam().save(folder_.path() / (name + GetParam().suffix), tensors);
  }
  const Path& folder() const { return folder_.path(); }

 private:
  TempDir folder_;
};

TEST_P(Shards, WithoutAnIndexAreJoinedByTheirNames) {
  save("model-00001-of-00002", {{"a", {1, 2}}});
  save("model-00002-of-00002", {{"b", {3}}});
  const auto source = open(folder());
  EXPECT_THAT(floats_of(*source, "a"), ElementsAre(1, 2));
  EXPECT_THAT(floats_of(*source, "b"), ElementsAre(3));
  EXPECT_EQ(source->catalog().tensors.size(), 2u);
  EXPECT_FALSE(source->part_of());
  EXPECT_THAT(source->notes(), ElementsAre(HasSubstr("there is no index: all 2 files")));
}

TEST_P(Shards, OfWhichOneIsMissingAreRefused) {
  save("model-00002-of-00003", {{"b", {3}}});
  EXPECT_THAT(refusal(folder()),
              Fails(ErrorCode::Corrupt, AllOf(HasSubstr("2 of 3"), HasSubstr("(number 1, 3)")),
                    Not(HasSubstr("name one of"))));
}

TEST_P(Shards, MayRepeatATensorThatIsTheSame) {
  save("model-00001-of-00002", {{"a", {1, 2}}});
  save("model-00002-of-00002", {{"a", {1, 2}}, {"b", {3}}});
  const auto source = open(folder());
  EXPECT_EQ(source->catalog().tensors.size(), 2u);
}

TEST_P(Shards, MayNotRepeatAnotherTensor) {
  save("model-00001-of-00002", {{"a", {1, 2}}});
  save("model-00002-of-00002", {{"a", {1, 3}}});
  EXPECT_THAT(refusal(folder()), Fails(ErrorCode::Corrupt, {"tensor \"a\" is in both"}));
}

TEST_P(Shards, OfTwoModelsAreNotMixed) {
  save("model-00001-of-00002", {{"a", {1}}});
  save("model.fp16-00001-of-00002", {{"b", {2}}});
  EXPECT_THAT(refusal(folder()), Fails(ErrorCode::Corrupt, {"1 of 2", "model-*-of-00002"}));
  save("model-00002-of-00002", {{"b", {3}}});
  save("model.fp16-00002-of-00002", {{"a", {4}}});
  const auto source = open(folder());  // the one without a variant, as from_pretrained does
  EXPECT_THAT(floats_of(*source, "b"), ElementsAre(3));
}

TEST_P(Shards, OfTwoSavesAreRefused) {
  save("model-00001-of-00001", {{"a", {1}}});
  save("model-00001-of-00002", {{"a", {1}}});
  save("model-00002-of-00002", {{"b", {2}}});
  EXPECT_THAT(refusal(folder()), Fails(ErrorCode::Unsupported, {"2 models or saves"}));
}

TEST_P(Shards, WithAbsurdNumbersAreRefusedAtOnce) {
  save("model-1000000000000000000-of-1000000000000000000", {{"a", {1}}});
  EXPECT_THAT(refusal(folder()), Fails(ErrorCode::Corrupt, {"999999999999999999 of"}));
}

TEST_P(Shards, WithTheSameNumberTwiceAreRefused) {
  save("model-00001-of-00002", {{"a", {1}}});
  save("model-1-of-00002", {{"b", {1}}});
  EXPECT_THAT(refusal(folder()), Fails(ErrorCode::Corrupt, {"have the same number"}));
}

TEST_P(Shards, ThatAreLinksAreFollowed) {
  save("first", {{"a", {1}}});
  save("model-00002-of-00002", {{"b", {2}}});
  const std::string suffix = GetParam().suffix;
  std::filesystem::create_directory(folder() / "blobs");
  std::filesystem::rename(folder() / ("first" + suffix), folder() / "blobs/x");
  std::filesystem::create_symlink("blobs/x", folder() / ("model-00001-of-00002" + suffix));
  EXPECT_EQ(open(folder())->catalog().tensors.size(), 2u);
  std::filesystem::remove(folder() / "blobs/x");
  EXPECT_THAT(refusal(folder()),
              Fails(ErrorCode::Corrupt, AnyOf(HasSubstr("1 of 2"), HasSubstr("not there"))));
}

TEST_P(Shards, AloneSayWhatTheyArePartsOf) {
  save("model-00002-of-00003", {{"b", {3}}});
  save("whole", {{"b", {3}}});
  save("model-00001-of-00001", {{"b", {3}}});
  const std::string suffix = GetParam().suffix;
  EXPECT_THAT(open(folder() / ("model-00002-of-00003" + suffix))->part_of(),
              Optional(HasSubstr("part 2 of 3")));
  EXPECT_FALSE(open(folder() / ("whole" + suffix))->part_of());
  EXPECT_FALSE(open(folder() / ("model-00001-of-00001" + suffix))->part_of());
}

INSTANTIATE_TEST_SUITE_P(Formats, Shards,
                         testing::Values(ShardFormat{".safetensors", save_vectors},
                                         ShardFormat{".bin", save_torch_vectors},
                                         ShardFormat{".pth", save_torch_vectors}));

/// The name says of which number the file is, and not how many there are.
TEST(Completeness, ALoneFileOfANumberIsAPartOrDoubted) {
  for (const char* name :
       {"shard_1.pt", "hf_model_0002_0.pt", "model.rank1.bin", "layer_03-model_states.pt",
        "layer_1_expert_2_mp_rank_00_model_states.pt"}) {
    const TempDir temp;
    save_torch_vectors(temp.path() / name, {{"a", {1}}});
    EXPECT_THAT(open(temp.path() / name)->part_of(), Optional(HasSubstr("number"))) << name;
  }
  const TempDir second;
  save_torch_vectors(second.path() / "shard_1.pt", {{"a", {1}}});
  EXPECT_THAT(refusal(second.path()),
              Fails(ErrorCode::Corrupt, {"shard_1.pt", "none of the others"}));
  for (const auto& [name, set] : {std::pair{"shard_0.pt", "shard_*.pt"},
                                  {"hf_model_0001_0.pt", "hf_model_*_0.pt"},
                                  {"model.rank0.bin", "model.rank*.bin"}}) {
    const TempDir temp;
    save_torch_vectors(temp.path() / name, {{"a", {1}}});
    const auto source = open(temp.path() / name);
    EXPECT_FALSE(source->part_of()) << name;
    ASSERT_EQ(source->losses().size(), 1u) << name;
    EXPECT_EQ(source->losses()[0].name, set);
    EXPECT_EQ(source->losses()[0].role, Role::OtherModel);
    EXPECT_THAT(open(temp.path())->notes(), ElementsAre(HasSubstr(name))) << "its folder";
  }
}

TEST(Completeness, AnOptimizersFileBesideShardsIsNamed) {
  const TempDir temp;
  save_torch_vectors(temp.path() / "shard_0.pt", {{"a", {1}}});
  save_torch_vectors(temp.path() / "shard_1.pt", {{"b", {1}}});
  save_torch_vectors(temp.path() / "optim_shard_0.pt", {{"m", {1}}});
  EXPECT_EQ(unread_in(temp.path()),
            (std::map<std::string, Role>{{"optim_shard_0.pt", Role::SideFile}}));
}

TEST(Completeness, ShardsOfTorchtuneAreJoined) {
  const TempDir temp;
  save_torch_vectors(temp.path() / "hf_model_0001_0.pt", {{"a", {1}}});
  save_torch_vectors(temp.path() / "hf_model_0002_0.pt", {{"b", {2}}});
  const auto source = open(temp.path());
  EXPECT_THAT(floats_of(*source, "b"), ElementsAre(2));
  EXPECT_THAT(open(temp.path() / "hf_model_0002_0.pt")->part_of(), Optional(HasSubstr("2 of 2")));
  save_torch_vectors(temp.path() / "hf_model_0004_0.pt", {{"c", {2}}});
  EXPECT_THAT(refusal(temp.path()), Fails(ErrorCode::Corrupt, {"1 of 4", "number 3"}));
}

TEST(Completeness, ShardsOfATrainersFolderAreJoined) {
  const TempDir temp;
  save_vectors(temp.path() / "model-00001-of-00002.safetensors", {{"a", {1}}});
  save_vectors(temp.path() / "model-00002-of-00002.safetensors", {{"b", {2}}});
  save_torch(temp.path() / "optimizer.pt",
             {{"state", Json::object()}, {"param_groups", Json::array()}}, {});
  const auto source = open(temp.path());
  EXPECT_EQ(source->format(), "trainer");
  EXPECT_THAT(floats_of(*source, "b"), ElementsAre(2));
  EXPECT_THAT(source->notes(), ElementsAre(HasSubstr("there is no index")));
  EXPECT_THAT(source->remarks(), testing::Contains(HasSubstr("scheduler.pt is not there")));
}

TEST(Completeness, FilesBesideAModelMayHoldWeightsByTheirNames) {
  for (const char* name : {"ema.pt", "adapter_model.safetensors", "value_head.bin"})
    EXPECT_EQ(role_of_unread_file(name), Role::OtherModel) << name;
  for (const char* name : {"meta.pt", "training_args.bin", "rng_state_0.pth", "notes.txt",
                           "sampler.bin", "dl_state_dict_1.bin"})
    EXPECT_EQ(role_of_unread_file(name), Role::SideFile) << name;
}

/// A copy that was cut in a file of the full size leaves zeros.
TEST(Completeness, AFileThatEndsWithZerosWithinATensorIsDoubted) {
  constexpr std::size_t kPage = 4096, kFloats = 4000;
  const TempDir temp;
  const Path file = temp.path() / "model.safetensors";
  const auto is_doubted = [&](const std::string& bytes, std::size_t zeros) {
    write_file(file, bytes.substr(0, bytes.size() - zeros) + std::string(zeros, '\0'));
    const std::vector<std::string> remarks = open(temp.path())->remarks();
    return std::ranges::any_of(remarks, [](const std::string& remark) {
      return remark.find("of zeros, which begin inside of") != std::string::npos;
    });
  };
  save_vectors(file, {{"a", std::vector<float>(4, 1)}, {"b", {1, 1}}, {"c", {1, 1}}});
  const std::string small = read_file(file);
  for (const std::size_t whole : {0U, 8U, 16U}) EXPECT_FALSE(is_doubted(small, whole)) << whole;
  EXPECT_FALSE(is_doubted(small, 4)) << "the end of the last tensor may be zero";
  EXPECT_TRUE(is_doubted(small, 16 + 12));
  save_vectors(file, {{"a", std::vector<float>(kFloats, 1)}});
  const std::string large = read_file(file);
  const std::size_t behind_page = large.size() % kPage;
  EXPECT_TRUE(is_doubted(large, behind_page));
  EXPECT_TRUE(is_doubted(large, behind_page + kPage));
  EXPECT_FALSE(is_doubted(large, behind_page + 8));
}

// Each file of torch.save numbers its storages from 0.
TEST(Completeness, TorchShardsOfATrainersFolderAreNotTied) {
  const TempDir temp;
  save_torch_vectors(temp.path() / "pytorch_model-00001-of-00002.bin", {{"a", {1, 2}}});
  save_torch_vectors(temp.path() / "pytorch_model-00002-of-00002.bin", {{"b", {3, 4}}});
  save_torch(temp.path() / "optimizer.pt",
             {{"state", Json::object()}, {"param_groups", Json::array()}}, {});
  const auto source = open(temp.path());
  EXPECT_EQ(source->format(), "trainer");
  EXPECT_TRUE(source->catalog().aliases.empty());
  EXPECT_THAT(floats_of(*source, "a"), ElementsAre(1, 2));
  EXPECT_THAT(floats_of(*source, "b"), ElementsAre(3, 4));
}

TEST(Completeness, ATorchShardThatIsACopyOfAnotherIsRefused) {
  const TempDir temp;
  for (const char* name : {"pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"})
    save_torch_vectors(temp.path() / name, {{"a", {1, 2}}});
  EXPECT_THAT(error_of([&] { open(temp.path()); }),
              Fails(ErrorCode::Corrupt, {"00002-of-00002", "nothing but what other files"}));
}

TEST(Completeness, NamesAreTakenApart) {
  const auto count = [](std::string_view name) {
    const auto part = parse_part_name(name);
    return part ? part->count.value_or(0) : 99;
  };
  EXPECT_EQ(count("model-00002-of-00003.safetensors"), 3u);
  EXPECT_EQ(count("diffusion_pytorch_model-00001-of-00002.fp16.safetensors"), 2u);
  EXPECT_EQ(count("ft-model-00001-of-00004.safetensors"), 4u);
  EXPECT_EQ(count("model_world_size_8_rank_3.pt"), 8u);
  EXPECT_EQ(count("w_pp-rank-0-of-3_tp-rank-1-of-2.safetensors"), 6u);
  EXPECT_EQ(count("consolidated.00.pth"), 0u);
  EXPECT_EQ(count("pytorch_model-00001.bin"), 0u);
  EXPECT_EQ(count("mp_rank_00_001"), 0u);
  for (const char* rank : {"rank_0.pt", "rank0.bin", "model.rank-1.pth", "m_shard_0.safetensors"})
    EXPECT_EQ(count(rank), 0u) << rank;
  for (const char* other : {"model.safetensors", "model-of-2.safetensors", "checkpoint-500",
                            "rng_state_0.pth", "epoch-3.pt", "model-1-of-99999999999999999999.bin",
                            "pytorch_model_1.bin", "a-1-of-2.json", "step-1-of.pt", ""})
    EXPECT_EQ(count(other), 99u) << other;
}

TEST(Completeness, EveryPatternFitsItsOwnExample) {
  for (const PartPattern& pattern : part_patterns()) {
    std::string name(pattern.pattern);
    const auto replace = [&](std::string_view what, std::string_view by) {
      for (std::size_t at; (at = name.find(what)) != std::string::npos;)
        name.replace(at, what.size(), by);
    };
    replace("<n>", "01");
    replace("<of>", "04");
    replace("<_>", "7");
    if (name.ends_with(".*")) name.replace(name.size() - 1, 1, "pt");
    if (name.ends_with("_*")) name.replace(name.size() - 1, 1, "optim_states.pt");
    replace("*", "x");
    const auto part = parse_part_name(name);
    ASSERT_TRUE(part) << name;
    EXPECT_EQ(part->numbers.front() % 6, 1u) << name;
  }
}

/// Files of parts and what is said of them.
TEST(Completeness, PartsOfParallelModelsAreRefusedInWords) {
  struct Case {
    std::vector<std::string> files;
    std::string folder;
    std::vector<std::string> says;
  };
  const std::string megatron = "iter_0000010/mp_rank_0", file = "/model_optim_rng.pt";
  const std::vector<Case> cases = {
      {{megatron + "0" + file, megatron + "1" + file}, "", {"Megatron-LM", "2 parts", "parallel"}},
      {{megatron + "0" + file, megatron + "1" + file},
       "iter_0000010/mp_rank_01",
       {"one rank's folder", "2 parts"}},
      {{megatron + "0_000" + file, megatron + "0_001" + file, megatron + "1_000" + file},
       "",
       {"Megatron-LM", "3 parts"}},
      {{megatron + "0" + file}, "", {"one part", "name its file"}},
      {{"mp_rank_00/model_weights.ckpt", "mp_rank_01/model_weights.ckpt"}, "", {"2 parts"}},
      {{"consolidated.00.pth", "consolidated.01.pth"}, "", {"Meta", "2 parts", "params.json"}},
      {{"a/consolidated.00.pth", "a/consolidated.01.pth"}, "", {"Meta", "2 parts"}},
      {{"ep0-ba1-rank0.pt", "ep0-ba1-rank1.pt"}, "", {"2 parts", "each rank"}},
      {{"rank_0.pt", "rank_1.pt"}, "", {"2 parts", "each rank"}},
      {{"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}, "", {"2 numbered files", "--merge"}},
      {{"m-shard0.pt", "m-shard1.pt", "m-shard2.pt"}, "", {"fairseq", "3 parts"}}};
  for (const Case& each : cases) {
    const TempDir temp;
    for (const std::string& name : each.files) {
      std::filesystem::create_directories((temp.path() / name).parent_path());
      write_file(temp.path() / name, "x");
    }
    const Error error = refusal(temp.path() / each.folder);
    for (const std::string& words : each.says)
      EXPECT_THAT(error, Fails(ErrorCode::Unsupported, words)) << each.files.front();
    EXPECT_THAT(error.what(), Not(HasSubstr("name one of"))) << each.files.front();
  }
}

TEST(Completeness, ArgumentsOfTheTrainingTellAPart) {
  const TempDir temp;
  const auto saved = [&](const Json& object) {
    save_torch(temp.path() / "x.pt", object, {{"w", {DType::Float32, {1}, {1}}}});
    const auto part = open(temp.path() / "x.pt")->part_of();
    std::filesystem::remove(temp.path() / "x.pt");
    return part;
  };
  const Json model = {{"w", tensor("w")}};
  EXPECT_THAT(saved({{"args", {{"tensor_model_parallel_size", 2}}}, {"model", model}}),
              Optional(AllOf(HasSubstr("parallel model"), HasSubstr("size 2"))));
  EXPECT_THAT(saved({{"hyper_parameters", {{"cfg", {{"pipeline_model_parallel_size", 4}}}}},
                     {"state_dict", model}}),
              Optional(HasSubstr("4")));
  EXPECT_FALSE(saved({{"args", {{"tensor_model_parallel_size", 1}}}, {"model", model}}));
  EXPECT_FALSE(saved({{"args", {{"tensor_model_parallel_size", "2"}}}, {"model", model}}));
}

TEST(Completeness, PlaceholdersOfZero3AreNoModel) {
  const TempDir temp;
  save_torch_vectors(temp.path() / "pytorch_model.bin",
                     {{"a.weight", {}}, {"a.bias", {}}, {"c", {1}}});
  EXPECT_THAT(refusal(temp.path()), Fails(ErrorCode::Unsupported, {"2 of 3 tensors", "ZeRO-3"}));
  save_vectors(temp.path() / "x.safetensors", {{"a.weight", {}}, {"b", {1}}, {"c", {}}});
  EXPECT_EQ(open(temp.path() / "x.safetensors")->catalog().tensors.size(), 3u);
}

TEST(Completeness, ArchivesOfNeMoAreCalledByTheirName) {
  const TempDir temp;
  save_torch_vectors(temp.path() / "model_weights.ckpt", {{"a", {1}}});
  std::string tar(512, '\0');
  tar.replace(0, 18, "model_weights.ckpt");
  tar.replace(257, 5, "ustar");
  write_file(temp.path() / "m.nemo", tar + test::read_file(temp.path() / "model_weights.ckpt"));
  EXPECT_THAT(refusal(temp.path() / "m.nemo"), Fails(ErrorCode::Unsupported, {"NeMo", "tar"}));
}

// ---- files of ranks ----

using Placed = RankFileWriter::Placed;

/// Writes the state dict {"w": tensor} of one rank.
template <class Append>
void save_rank(const Path& folder, int rank, int ranks, const std::string& start,
               const Append& append) {
  RankFileWriter file;
  file.pickle.begin_ordered_dict();
  append(file);
  file.pickle.end_dict();
  file.write(folder / (start + "_world_size_" + std::to_string(ranks) + "_rank_" +
                       std::to_string(rank) + ".pt"));
}

/// Indices that torch 2.15 gives to the ranks (dp, tp) of FSDP2 over tensor parallelism.
TEST(RankFiles, StridedShardsOfUnevenSizesAreInTheOrderOfTheirSplits) {
  for (const std::uint64_t rows : {10u, 9u, 7u, 5u, 3u, 1u, 0u}) {
    const TempDir temp;
    const std::uint64_t ranks = 4, tp = 2;
    for (std::uint64_t rank = 0; rank < ranks * tp; ++rank) {
      // tensor parallelism first, then FSDP2, as torch.chunk cuts
      const auto cut = [](std::uint64_t begin, std::uint64_t end, std::uint64_t n,
                          std::uint64_t i) {
        const std::uint64_t size = (end - begin + n - 1) / n;
        const std::uint64_t first = std::min(begin + size * i, end);
        return std::pair(first, std::min(first + size, end));
      };
      const auto [a, b] = cut(0, rows, tp, rank % tp);
      const auto [first, last] = cut(a, b, ranks, rank / tp);
      std::vector<float> values;
      for (std::uint64_t i = first * 3; i < last * 3; ++i) values.push_back(static_cast<float>(i));
      save_rank(temp.path(), static_cast<int>(rank), 8, "model", [&](RankFileWriter& file) {
        file.pickle.str("w");
        file.dtensor({rows, 3}, {last - first, 3}, values, {ranks, tp}, {rank / tp, rank % tp},
                     {{"_StridedShard", 0, 2}, {"Shard", 0}});
      });
    }
    const auto source = open(temp.path());
    std::vector<float> expected;
    for (std::uint64_t i = 0; i < rows * 3; ++i) expected.push_back(static_cast<float>(i));
    EXPECT_EQ(floats_of(*source, "w"), expected) << rows;
  }
}

TEST(RankFiles, AStridedShardWithoutSuchAnOrderIsWhatItsFactorSays) {
  const TempDir temp;  // [0, 12) as 3 parts of 4; each rank has a half of each
  const std::vector<std::vector<float>> parts = {{0, 1, 4, 5, 8, 9}, {2, 3, 6, 7, 10, 11}};
  for (std::uint64_t rank = 0; rank < 2; ++rank)
    save_rank(temp.path(), static_cast<int>(rank), 2, "model", [&](RankFileWriter& file) {
      file.pickle.str("w");
      file.dtensor({12}, {6}, parts[rank], {2}, {rank}, {{"_StridedShard", 0, 3}});
    });
  EXPECT_THAT(floats_of(*open(temp.path()), "w"),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
}

TEST(RankFiles, AStridedShardThatIsAnotherPartIsLeftOut) {
  const TempDir temp;
  save_rank(temp.path(), 0, 1, "model", [&](RankFileWriter& file) {
    file.pickle.str("w");
    file.dtensor({4}, {3}, {1, 2, 3}, {2}, {0}, {{"_StridedShard", 0, 1000000000000}});
    file.pickle.str("v");
    file.plain({1}, {1});
  });
  const auto source = open(temp.path());
  EXPECT_EQ(source->catalog().tensors.size(), 1u);
}

TEST(RankFiles, CopiesAreCompared) {
  const TempDir temp;
  const auto save = [&](int rank, float value) {
    save_rank(temp.path(), rank, 2, "model", [&](RankFileWriter& file) {
      file.pickle.str("bn.running_mean");
      file.plain({2}, {1, value});
      file.pickle.str("bn.weight");
      file.plain({2}, {5, 6});
    });
  };
  save(0, 2);
  save(1, 2);
  EXPECT_THAT(floats_of(*open(temp.path()), "bn.running_mean"), ElementsAre(1, 2));
  std::filesystem::remove(temp.path() / "model_world_size_2_rank_1.pt");
  save(1, 3);
  EXPECT_THAT(
      refusal(temp.path()),
      Fails(ErrorCode::Unsupported, {"copies of 1 tensors differ", "drifted"}, "--from-rank"));
  const auto source = open_source(posix_storage(), temp.path(), OpenOptions{.from_rank = 1});
  EXPECT_THAT(floats_of(*source, "bn.running_mean"), ElementsAre(1, 3));
  EXPECT_THAT(
      error_of([&] { open_source(posix_storage(), temp.path(), OpenOptions{.from_rank = 5}); }),
      Fails(ErrorCode::InvalidArgument, {"rank 5 has no copy"}));
}

TEST(RankFiles, HaveStatesOfRandomGeneratorsOfTheirOwn) {
  const TempDir temp;
  for (const int rank : {0, 1}) {
    const Json content = {{"model", {{"a.weight", tensor("a")}, {"a.bias", tensor("b")}}},
                          {"cpu_rng", tensor("rng")}};
    save_torch(temp.path() / fmt::format("model_world_size_2_rank_{}.pt", rank), content,
               {{"a", {DType::Float32, {2}, {1, 2}}},
                {"b", {DType::Float32, {1}, {3}}},
                {"rng", {DType::Float32, {2}, {5, static_cast<float>(rank)}}}});
  }
  const auto source = open(temp.path());
  EXPECT_THAT(floats_of(*source, "a.weight"), ElementsAre(1, 2));
  EXPECT_THAT(source->notes(),
              testing::Contains(HasSubstr("\"cpu_rng\" differs on ranks 0 and 1: that of rank 0")));
}

TEST(RankFiles, ARankIsChosenOnlyWhereRanksHaveCopies) {
  const TempDir temp;
  save_vectors(temp.path() / "x.safetensors", {{"a", {1}}});
  EXPECT_THAT(
      error_of([&] { open_source(posix_storage(), temp.path(), OpenOptions{.from_rank = 0}); }),
      Fails(ErrorCode::InvalidArgument, {"--from-rank"}));
}

TEST(RankFiles, AloneSayWhatTheyArePartsOf) {
  const TempDir temp;
  const Path alone = temp.path() / "x.pt";
  RankFileWriter file;
  file.pickle.begin_ordered_dict();
  file.pickle.str("w");
  file.dtensor({4}, {2}, {1, 2}, {2}, {0}, {{"Shard", 0}});
  file.pickle.str("v");
  file.dtensor({2}, {2}, {3, 4}, {2}, {0}, {{"Replicate"}});
  file.pickle.end_dict();
  file.write(alone);
  const auto source = open(alone);
  EXPECT_THAT(floats_of(*source, "v"), ElementsAre(3, 4));
  EXPECT_EQ(source->catalog().tensors.size(), 1u);
  EXPECT_THAT(source->part_of(), Optional(HasSubstr("ranks")));
}

// ---- optimizers of FSDP1 ----

using Moments = std::vector<std::vector<float>>;  ///< of one rank, by the numbers of parameters

/// Saves a model of two sharded parameters, and the optimizer's vectors of each rank.
void save_fsdp1(const Path& folder, const std::vector<Moments>& moments) {
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    save_rank(folder, static_cast<int>(rank), 2, "model", [&](RankFileWriter& file) {
      file.pickle.str("a");
      file.dtensor({2, 2}, {1, 2}, {1, 2}, {2}, {rank}, {{"Shard", 0}});
      file.pickle.str("b");
      file.dtensor({2}, {1}, {5}, {2}, {rank}, {{"Shard", 0}});
    });
    save_rank(folder, static_cast<int>(rank), 2, "optim", [&](RankFileWriter& file) {
      file.pickle.str("state");
      file.pickle.begin_dict();
      for (std::size_t i = 0; i < moments[rank].size(); ++i) {
        const auto& values = moments[rank][i];
        if (values.empty()) continue;  // torch has no state of a parameter that it never saw
        file.pickle.integer(static_cast<std::int64_t>(i));
        file.pickle.begin_dict();
        file.pickle.str("step");
        file.plain({}, {3});
        file.pickle.str("exp_avg");
        file.plain({values.size()}, values);
        file.pickle.end_dict();
      }
      file.pickle.end_dict();
      file.one_group(moments[rank].size());
    });
  }
}

TEST(RankOptimizer, PiecesOfParametersAreJoined) {
  const TempDir temp;
  save_fsdp1(temp.path(), {{{10, 11, 12}, {}}, {{13}, {20, 21}}});
  const auto source = open(temp.path());
  const auto moment = [&](const std::string& fqn) {
    const auto found = source->catalog().find(fqn, "exp_avg");
    if (!found) return std::vector<float>();
    const auto bytes = read_all(*source, *found);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  EXPECT_THAT(moment("a"), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(moment("b"), ElementsAre(20, 21));
  EXPECT_EQ(source->catalog().step, 3);
}

/// Returns why the optimizer of the folder is left out.
std::string why_optimizer_is_lost(const Path& folder) {
  const auto source = open(folder);
  EXPECT_EQ(source->catalog().tensors.size(), 2u);
  EXPECT_TRUE(source->catalog().groups.is_null());
  const Losses losses = source->losses();
  const auto loss = std::ranges::find(losses, Role::Optimizer, &Loss::role);
  return loss == losses.end() ? "" : loss->why;
}

TEST(RankOptimizer, PiecesOfSwappedRanksAreLost) {
  const TempDir temp;
  save_fsdp1(temp.path(), {{{13}, {20, 21}}, {{10, 11, 12}, {}}});
  EXPECT_THAT(why_optimizer_is_lost(temp.path()), HasSubstr("another rank's"));
}

TEST(RankOptimizer, PiecesOfAnotherOrderThanTheModelsAreLost) {
  // The flat parameter holds b, then a, as it does where the optimizer has the model's parameters
  // in reverse: rank 0 has b and one element of a.
  const TempDir temp;
  save_fsdp1(temp.path(), {{{10}, {20, 21}}, {{11, 12, 13}, {}}});
  EXPECT_THAT(why_optimizer_is_lost(temp.path()), HasSubstr("in another order"));
}

TEST(RankOptimizer, PiecesOfFlatParametersAreLostAndTheModelIsNot) {
  for (const auto& moments :
       std::vector<std::vector<Moments>>{{{{1, 2, 3}}, {{4, 5, 6}}},  // one flat parameter of both
                                         {{{0, 0, 0}}, {{0, 0, 0}}},  // equal on both ranks
                                         {{{1}, {2}}, {{3}, {4}}},    // too few elements
                                         {{{1, 2, 3}}, {{4, 5, 6}}}}) {
    const TempDir temp;
    save_fsdp1(temp.path(), moments);
    EXPECT_THAT(why_optimizer_is_lost(temp.path()), HasSubstr("pieces of flat parameters"));
  }
}

// ---- classes of other packages ----

TEST(ForeignClasses, WithTheFieldsOfTorchsStorageInfoAreTorchs) {
  const TempDir temp;
  const Catalog catalog = catalog_of({weight("a", DType::Float32, {4, 3})});
  write_example_file("dcp", temp.path() / "run", catalog);
  const Path metadata = temp.path() / "run/.metadata";
  std::string bytes = test::read_file(metadata);
  const std::string torchs = "torch.distributed.checkpoint.filesystem",
                    theirs = "olmos.distributed.checkpoint.filesystem";
  const std::size_t at = bytes.find(torchs);
  ASSERT_NE(at, std::string::npos);
  for (std::size_t i = at; i != std::string::npos; i = bytes.find(torchs, i))
    bytes.replace(i, torchs.size(), theirs);
  write_file(metadata, bytes);
  EXPECT_EQ(read_all(*open(temp.path() / "run"), 0), test::example_bytes(catalog, 0, 1));
  bytes.replace(bytes.find("relative_path"), 13, "elsewhere_pat");
  write_file(metadata, bytes);
  EXPECT_THAT(refusal(temp.path() / "run"), Fails(ErrorCode::Corrupt, {"storage_data holds"}));
}

TEST(ForeignClasses, AWrapperOfAnOrdinaryTensorIsTheTensor) {
  for (const bool has_config : {true, false}) {
    const TempDir temp;
    RankFileWriter file;
    file.pickle.begin_ordered_dict();
    file.pickle.str("v");
    file.plain({1}, {9});
    file.pickle.str("w");
    file.pickle.global("torch._tensor", "_rebuild_from_type_v2");
    file.pickle.begin_tuple();
    file.pickle.global("torch._utils", "_rebuild_wrapper_subclass");
    file.pickle.global("torchao.float8.fsdp_utils", "WeightWithDynamicFloat8CastTensor");
    file.pickle.begin_tuple();
    file.pickle.end_tuple();
    file.pickle.begin_dict();
    file.pickle.str("_tensor");
    file.plain({2}, {1, 2});
    if (has_config) {
      file.pickle.str("_linear_mm_config");
      file.pickle.none();
    }
    file.pickle.end_dict();
    file.pickle.end_tuple();
    file.pickle.reduce();
    file.pickle.end_dict();
    file.write(temp.path() / "x.pt");
    const auto source = open(temp.path() / "x.pt");
    EXPECT_EQ(source->catalog().tensors.size(), has_config ? 2u : 1u);
    if (has_config) {
      EXPECT_THAT(floats_of(*source, "w"), ElementsAre(1, 2));
    }
  }
}

}  // namespace
}  // namespace unishard::converters
