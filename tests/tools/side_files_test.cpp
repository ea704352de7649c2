// What is copied beside a model is what lies in its folder, and nothing else of the machine.
#include "unishard/format/json.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// A state that torch.save wrote.
const Path kSchedule = Path(UNISHARD_TEST_DATA) / "golden/trainer/llama/scheduler.pt";

class SideFilesOfModels : public testing::Test {
 protected:
  void SetUp() override {
    write_example(temp_.path() / "in");
    write_file(secret_, "{\"password\": \"hunter2\"}");
    make_model(model_);
  }
  void make_model(const Path& folder) {
    ASSERT_EQ(unishard({"zero_to_fp32", temp_.path() / "in", folder, "-q"}).status, 0);
  }
  /// Copies the model; returns the report.
  Json convert(const Path& from) {
    fs::remove_all(out_);
    return report_of({"convert", from, out_, "--to", "safetensors"});
  }
  void expect_left_out(const std::string& name, const std::string& why) {
    const Json report = convert(model_);
    EXPECT_FALSE(fs::exists(fs::symlink_status(out_ / name)));
    EXPECT_EQ(report["side_files"], Json::array());
    EXPECT_THAT(report["left_out"].dump(), HasSubstr(name));
    EXPECT_THAT(report["left_out"].dump(), HasSubstr(why));
    const Path again = temp_.path() / "again";
    const ProcessResult text = unishard({"zero_to_fp32", model_, again});
    EXPECT_EQ(text.status, 0);
    EXPECT_THAT(text.err, HasSubstr("left out: " + name + ": " + why));
    EXPECT_FALSE(fs::exists(again / name));
  }

  const TempDir temp_;
  const Path model_ = temp_.path() / "model", out_ = temp_.path() / "out",
             secret_ = temp_.path() / "secret.json";
};

TEST_F(SideFilesOfModels, StateOfATrainingRunIsNamedAndStrictRefusesIt) {
  const Path torch_model = temp_.path() / "torch";
  fs::create_directory(torch_model);
  ASSERT_EQ(unishard({"zero_to_fp32", temp_.path() / "in", torch_model / "pytorch_model.bin", "-q"})
                .status,
            0);
  for (const Path& model : {model_, torch_model}) {
    for (const char* name : {"scheduler.pt", "rng_state_0.pth"})
      fs::copy_file(kSchedule, model / name);
    EXPECT_THAT(convert(model)["left_out"].dump(),
                AllOf(HasSubstr("the learning rate schedule"), HasSubstr("rng_state_0.pth"),
                      HasSubstr("no file of it is beside the schedule's")));
    const Path strict = temp_.path() / "strict.safetensors";
    const ProcessResult result =
        unishard({"convert", model, strict, "--to", "safetensors", "--strict"});
    EXPECT_EQ(result.status, 6) << result.err;
    EXPECT_THAT(result.err, HasSubstr("scheduler.pt"));
    EXPECT_FALSE(fs::exists(strict));
  }
}

TEST_F(SideFilesOfModels, AreCopiedAndNamed) {
  write_file(model_ / "config.json", "{\"model_type\": \"gpt2\"}");
  write_file(model_ / "merges.txt", "a b\n");
  EXPECT_EQ(convert(model_)["side_files"], (Json{"config.json", "merges.txt"}));
  EXPECT_EQ(read_file(out_ / "merges.txt"), "a b\n");
  const ProcessResult text = unishard({"zero_to_fp32", model_, temp_.path() / "again"});
  EXPECT_THAT(text.err, HasSubstr("side files: config.json, merges.txt"));
  EXPECT_EQ(report_of({"zero_to_fp32", model_, temp_.path() / "third"})["side_files"],
            (Json{"config.json", "merges.txt"}));
}

TEST_F(SideFilesOfModels, BesideAFileAreCopiedWhereItIsAModels) {
  const Path folder = temp_.path() / "train", file = folder / "train.pt";
  fs::create_directory(folder);
  ASSERT_EQ(unishard({"convert", model_, file, "--to", "torch", "-q"}).status, 0);
  write_file(folder / "merges.txt", "a b\n");
  EXPECT_EQ(report_of({"zero_to_fp32", file, temp_.path() / "none"})["side_files"], Json::array());
  write_file(folder / "config.json", "{\"model_type\": \"gpt2\"}");
  EXPECT_EQ(report_of({"zero_to_fp32", file, out_})["side_files"],
            (Json{"config.json", "merges.txt"}));
}

TEST_F(SideFilesOfModels, LinksThatLeaveTheFolderAreRefused) {
  for (const Path& target : {secret_, Path("../secret.json"), Path("/etc/passwd")}) {
    fs::remove(model_ / "tokenizer.model");
    fs::create_symlink(target, model_ / "tokenizer.model");
    expect_left_out("tokenizer.model", "a link that leaves the folder");
    fs::remove_all(temp_.path() / "again");
  }
}

TEST_F(SideFilesOfModels, GoThroughEveryFormatOfFolders) {
  const Json files = {"config.json", "merges.txt"};
  write_file(model_ / "config.json", "{\"model_type\": \"gpt2\"}");
  write_file(model_ / "merges.txt", "a b\n");
  for (const char* format : {"native", "dcp", "torch"}) {
    const Path there = temp_.path() / format, back = there.string() + "-back";
    EXPECT_EQ(report_of({"convert", model_, there, "--to", format})["side_files"], files);
    EXPECT_EQ(report_of({"zero_to_fp32", there, back})["side_files"], files) << format;
    EXPECT_EQ(read_file(back / "merges.txt"), "a b\n");
  }
}

TEST_F(SideFilesOfModels, AreNamedWhereOneFileCannotHoldThem) {
  write_file(model_ / "config.json", "{\"model_type\": \"gpt2\"}");
  write_file(model_ / "merges.txt", "a b\n");
  for (const std::string suffix : {"npz", "pt", "h5", "safetensors"}) {
    const Json report =
        report_of({"convert", model_, temp_.path() / ("one." + suffix), "--strict"});
    EXPECT_THAT(report["remarks"].dump(), HasSubstr(" file holds no config.json, merges.txt:"))
        << suffix;
  }
}

TEST_F(SideFilesOfModels, OfAnAdapterAreFoundFromTheFolderOfTags) {
  const Path run = temp_.path() / "native";
  ASSERT_EQ(unishard({"convert", model_, run, "--to", "native", "-q"}).status, 0);
  const std::string tag = read_file(run / "latest");
  write_file(run / tag.substr(0, tag.find('\n')) / "adapter_config.json",
             R"({"peft_type": "LORA"})");
  EXPECT_EQ(report_of({"zero_to_fp32", run, out_})["side_files"], Json({"adapter_config.json"}));
}

TEST_F(SideFilesOfModels, AFolderBesideWithTheSameBeginningIsAnotherFolder) {
  write_file(temp_.path() / "model-2" / "vocab.txt", "secret");
  fs::create_symlink("../model-2/vocab.txt", model_ / "vocab.txt");
  expect_left_out("vocab.txt", "a link that leaves the folder");
}

TEST_F(SideFilesOfModels, LinksInsideOfTheFolderAreFollowed) {
  write_file(model_ / "files" / "t.json", "{}");
  fs::create_symlink("files/t.json", model_ / "tokenizer.json");
  EXPECT_EQ(convert(model_)["side_files"], Json{"tokenizer.json"});
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(out_ / "tokenizer.json")));
}

TEST_F(SideFilesOfModels, ThatAreNoJsonAreRefused) {
  write_file(model_ / "vocab.json", "root:x:0:0\n");
  expect_left_out("vocab.json", "it is not valid JSON");
}

TEST_F(SideFilesOfModels, ThatAreNoRegularFilesAreRefused) {
  ASSERT_EQ(::mkfifo((model_ / "vocab.txt").c_str(), 0600), 0);
  expect_left_out("vocab.txt", "it is not a regular file");
}

TEST_F(SideFilesOfModels, ThatAreFoldersAreRefused) {
  fs::create_directory(model_ / "merges.txt");
  expect_left_out("merges.txt", "it is not a regular file");
}

TEST_F(SideFilesOfModels, ThatLeadNowhereAreRefused) {
  fs::create_symlink("nowhere", model_ / "merges.txt");
  expect_left_out("merges.txt", "No such file or directory");
}

TEST_F(SideFilesOfModels, ThatAreTooLargeAreRefused) {
  write_file(model_ / "vocab.txt", "x");
  fs::resize_file(model_ / "vocab.txt", (std::uint64_t{64} << 20) + 1);
  expect_left_out("vocab.txt", "67108865 bytes, and at most 67108864 are copied");
}

// As huggingface_hub lays it out: snapshots/REVISION/NAME -> ../../blobs/HASH.
TEST_F(SideFilesOfModels, TheCacheOfTheHubWorks) {
  const Path repository = temp_.path() / "models--org--name", blobs = repository / "blobs",
             snapshot = repository / "snapshots" / "0123abc";
  fs::create_directories(blobs);
  fs::create_directories(snapshot);
  write_file(model_ / "config.json", "{}");
  for (const auto& entry : fs::directory_iterator(model_)) {
    const Path name = entry.path().filename();
    fs::rename(entry.path(), blobs / name);
    fs::create_symlink(Path("../../blobs") / name, snapshot / name);
  }
  fs::create_symlink("../../../secret.json", snapshot / "vocab.json");
  const Json report = convert(snapshot);
  EXPECT_EQ(report["side_files"], Json{"config.json"});
  EXPECT_THAT(report["left_out"].dump(), HasSubstr("vocab.json"));
}

class HubCache : public testing::Test {
 protected:
  void SetUp() override {
    write_example(temp_.path() / "in");
    for (const char* commit : {"0123abc", "4567def"})
      ASSERT_EQ(
          unishard({"zero_to_fp32", temp_.path() / "in", repository_ / "snapshots" / commit, "-q"})
              .status,
          0);
    write_file(repository_ / "refs" / "main", "4567def");
    write_file(repository_ / "refs" / "refs" / "pr" / "1", "0123abc\n");
  }

  ProcessResult inspect(const std::string& name) {
    return unishard({"inspect", name}, {{"HF_HUB_CACHE", temp_.path().string()}});
  }
  void expect_snapshot(const std::string& name, const std::string& commit) {
    const ProcessResult result = inspect(name);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("models--org--name/snapshots/" + commit)) << name;
  }

  test::TempDir temp_;
  const Path repository_ = temp_.path() / "models--org--name";
};

TEST_F(HubCache, NamesAndFoldersMeanASnapshot) {
  expect_snapshot("org/name", "4567def");
  expect_snapshot("hf://org/name", "4567def");
  expect_snapshot("org/name@refs/pr/1", "0123abc");
  expect_snapshot("org/name@0123abc", "0123abc");
  expect_snapshot(repository_.string(), "4567def");
  expect_snapshot(repository_.string() + "/", "4567def");
  fs::remove_all(repository_ / "refs");
  EXPECT_THAT(inspect("org/name").err, HasSubstr("no revision main, and 2 snapshots"));
  fs::remove_all(repository_ / "snapshots" / "4567def");
  expect_snapshot("org/name", "0123abc");
}

TEST_F(HubCache, WhatIsNotThereIsNamed) {
  EXPECT_THAT(inspect("hf://org/other").err, HasSubstr("hf download"));
  EXPECT_THAT(inspect("org/name@v2").err, HasSubstr("no revision \"v2\""));
  EXPECT_THAT(inspect("org/other"),
              AllOf(testing::Field(&ProcessResult::status, 3),
                    testing::Field(&ProcessResult::err, HasSubstr("hf download"))));
  fs::remove_all(repository_ / "snapshots" / "4567def");
  EXPECT_THAT(inspect("org/name").err, HasSubstr("snapshot 4567def is missing"));
}

TEST_F(HubCache, NoPathLeavesIt) {
  write_file(temp_.path() / "secret", "4567def");
  for (const char* commit : {"..", "../../secret", "/etc", ""}) {
    write_file(repository_ / "refs" / "main", commit);
    EXPECT_EQ(inspect("org/name").status, 4) << commit;
  }
  for (const char* name :
       {"org/name@../../secret", "org/name@/etc/passwd", "hf://../name", "hf://"})
    EXPECT_EQ(inspect(name).status, 3) << name;
}

TEST_F(SideFilesOfModels, AnIndexThatLeavesOutAWholeFileIsDamage) {
  for (const char* suffix : {"safetensors", "bin"}) {
    const bool is_torch = std::string_view(suffix) == "bin";
    const std::string stem = is_torch ? "pytorch_model" : "model";
    const Path folder = temp_.path() / suffix;
    fs::create_directory(folder);
    const Path file = folder / (stem + "-00001-of-00002." + suffix);
    const Path made = temp_.path() / (std::string("whole.") + (is_torch ? "pt" : suffix));
    ASSERT_EQ(unishard({"zero_to_fp32", temp_.path() / "in", made, "-q"}).status, 0);
    fs::copy(made, file);
    fs::copy(made, folder / (stem + "-00002-of-00002." + suffix));
    Json map = Json::object();
    map["x"] = file.filename().string();
    for (const Json& weights : {map, Json(Json::object())}) {
      write_file(folder / (stem + "." + suffix + ".index.json"),
                 Json{{"weight_map", weights}}.dump());
      const ProcessResult result = unishard({"verify", folder});
      EXPECT_EQ(result.status, 1) << result.out << result.err;
    }
    write_file(folder / (stem + "." + suffix + ".index.json"), Json{{"weight_map", map}}.dump());
    const ProcessResult result = unishard({"inspect", folder});
    EXPECT_THAT(result.err, AllOf(HasSubstr("it lists no tensor of \"" + stem + "-00002-of-00002."),
                                  HasSubstr("which is in the folder"), HasSubstr("remove it")));
    fs::remove(folder / (stem + "-00002-of-00002." + suffix));
    EXPECT_THAT(unishard({"inspect", folder}).err, HasSubstr("1 of 2 files named like")) << suffix;
  }
}

TEST_F(SideFilesOfModels, AConfigurationThatReadersTakeDifferentlyIsLeftOut) {
  write_file(model_ / "config.json", R"({"a": 1, "a": 2})");
  const ProcessResult result =
      unishard({"convert", model_, out_.string() + "/", "--to", "safetensors"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("left out: config.json"));
}

TEST_F(SideFilesOfModels, AFolderCalledBlobsAloneIsNoCache) {
  const Path blobs = temp_.path() / "blobs", snapshot = temp_.path() / "snapshots" / "a";
  make_model(snapshot);
  write_file(blobs / "x", "{}");
  fs::create_symlink("../../blobs/x", snapshot / "config.json");
  EXPECT_EQ(convert(snapshot)["side_files"], Json::array());
}

TEST_F(SideFilesOfModels, TheConfigurationStatesTheDtypeOfTheWeights) {
  const auto converted = [&](const std::string& config) {
    write_file(model_ / "config.json", config);
    convert(model_);
    return read_text(posix_storage(), out_ / "config.json", 1 << 20);
  };
  const Json changed = parse_json(
      converted(R"({"dtype": "bfloat16", "eps": 1e-05, "text_config": {"torch_dtype": "bfloat16"},
                    "quantization_config": {"dtype": "bfloat16"}})"),
      "config.json");
  EXPECT_EQ(changed, Json({{"dtype", "float32"},
                           {"eps", 1e-05},
                           {"text_config", {{"torch_dtype", "float32"}}},
                           {"quantization_config", {{"dtype", "bfloat16"}}}}));
  for (const std::string same : {"{\"dtype\":   \"float32\"}", "{ \"a\": 1 }", "[]"})
    EXPECT_EQ(converted(same), same);
}

TEST_F(SideFilesOfModels, AnAdapterStaysAnAdapter) {
  const Path adapter = temp_.path() / "adapter";
  fs::create_directory(adapter);
  fs::copy_file(model_ / "model.safetensors", adapter / "adapter_model.safetensors");
  write_file(adapter / "adapter_config.json", R"({"peft_type": "LORA"})");
  EXPECT_EQ(convert(adapter)["side_files"], Json({"adapter_config.json"}));
  EXPECT_TRUE(fs::exists(out_ / "adapter_model.safetensors"));
  EXPECT_FALSE(fs::exists(out_ / "model.safetensors"));
}

/// from_pretrained() would make such weights anew, and say so in a warning only.
TEST_F(SideFilesOfModels, TheConfigurationStaysBehindWhereTheNamesAreThoseOfWrappers) {
  write_file(model_ / "config.json", "{}");
  const std::string rule = R"(^(.*)\.(\w+)$=$1.base_layer.$2)";
  const ProcessResult result = unishard({"zero_to_fp32", model_, out_, "--rename", rule});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("base_layer"), HasSubstr("config.json is left out")));
  EXPECT_FALSE(fs::exists(out_ / "config.json"));
}

TEST_F(SideFilesOfModels, AModelOfDiffusersKeepsItsFileNames) {
  const Path unet = temp_.path() / "unet";
  fs::create_directory(unet);
  fs::copy_file(model_ / "model.safetensors", unet / "diffusion_pytorch_model.safetensors");
  write_file(unet / "diffusion_pytorch_model.fp16.safetensors", "a variant, which is not read");
  write_file(unet / "config.json",
             R"({"_class_name": "UNet2DModel", "_diffusers_version": "0.42"})");
  ASSERT_EQ(unishard({"zero_to_fp32", unet, out_}).status, 0);
  EXPECT_TRUE(fs::exists(out_ / "diffusion_pytorch_model.safetensors"));
  EXPECT_FALSE(fs::exists(out_ / "model.safetensors"));
  EXPECT_EQ(unishard({"diff", "--upcast", model_, out_}).status, 0);
  const Path shards = temp_.path() / "shards";
  ASSERT_EQ(unishard({"zero_to_fp32", out_, shards, "--max_shard_size", "1KB"}).status, 0);
  EXPECT_TRUE(fs::exists(shards / "diffusion_pytorch_model.safetensors.index.json"));
  EXPECT_EQ(unishard({"diff", "--upcast", model_, shards}).status, 0);
  fs::remove(unet / "config.json");  // the name tells too
  for (const Path& input : {unet, unet / "diffusion_pytorch_model.safetensors", shards}) {
    const Path copy = temp_.path() / "copy";
    fs::remove_all(copy);
    ASSERT_EQ(unishard({"convert", input, copy, "--to", "safetensors"}).status, 0) << input;
    EXPECT_TRUE(fs::exists(copy / "diffusion_pytorch_model.safetensors")) << input;
  }
}

TEST_F(SideFilesOfModels, AFolderOfModelsNamesThem) {
  const Path runs = temp_.path() / "runs";
  for (const char* name : {"model-4", "model-10"}) {
    fs::create_directories(runs / name);
    fs::copy_file(model_ / "model.safetensors", runs / name / "model.safetensors");
  }
  const ProcessResult refused = unishard({"inspect", runs});
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.err, HasSubstr("name one of them, model-4, model-10"));
}

class SideFilesOfTrainers : public testing::Test {
 protected:
  void SetUp() override {
    write_example(temp_.path() / "native");
    ASSERT_EQ(
        unishard({"convert", temp_.path() / "native", run_, "--to", "deepspeed", "-q"}).status, 0);
    for (const char* name : kFiles) fs::copy_file(kSchedule, run_ / name);
    write_file(run_ / "modeling_x.py", "pass");
    write_file(run_ / "trainer_state.json", "{\"log_history\": [{\"loss\": NaN}]}");
    write_file(run_ / "notes.txt", "mine");
  }

  static constexpr std::array<const char*, 3> kFiles = {"rng_state_0.pth", "scheduler.pt",
                                                        "training_args.bin"};
  const TempDir temp_;
  const Path run_ = temp_.path() / "checkpoint-7", out_ = temp_.path() / "out";
};

TEST_F(SideFilesOfTrainers, GoWithTheCheckpoint) {
  const std::vector<std::string> expected = {"modeling_x.py", "rng_state_0.pth", "scheduler.pt",
                                             "trainer_state.json", "training_args.bin"};
  for (const Path& input : {run_, run_ / "global_step7", run_ / ""}) {
    fs::remove_all(out_);
    EXPECT_EQ(report_of({"reshard", input, out_, "-w", "3"})["side_files"], Json(expected));
    for (const std::string& name : expected)
      EXPECT_EQ(read_file(out_ / name), read_file(run_ / name)) << name;
    EXPECT_FALSE(fs::exists(out_ / "notes.txt"));
    EXPECT_EQ(unishard({"verify", out_, "--deep"}).status, 0);
  }
}

TEST_F(SideFilesOfModels, OfARunAreKnownByItsOptimizerToo) {
  const Path run = temp_.path() / "run";
  test::copy_folder(kSchedule.parent_path(), run);
  fs::remove(run / "trainer_state.json");
  fs::copy_file(kSchedule, run / "rng_state.pth");
  const Json files =
      report_of({"convert", run, temp_.path() / "again", "--to", "trainer"})["side_files"];
  EXPECT_THAT(files.get<std::vector<std::string>>(), testing::Contains("rng_state.pth"));
}

/// A Trainer cannot load a file that is cut, and goes on without one that is not there.
TEST_F(SideFilesOfTrainers, StayWhereTheyAreDamaged) {
  write_file(run_ / "rng_state_0.pth", read_file(kSchedule).substr(0, 300));
  const ProcessResult made = unishard({"reshard", run_, out_, "-w", "3"});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.err + made.out, HasSubstr("left out: file \"rng_state_0.pth\": damaged ("));
  EXPECT_FALSE(fs::exists(out_ / "rng_state_0.pth"));
  EXPECT_TRUE(fs::exists(out_ / "scheduler.pt"));
  const ProcessResult checked = unishard({"verify", run_});
  EXPECT_EQ(checked.status, 1) << checked.err;
  EXPECT_THAT(checked.out + checked.err,
              AllOf(HasSubstr("rng_state_0.pth: damaged ("), HasSubstr("bring the file back")));
  EXPECT_EQ(unishard({"verify", out_}).status, 0);
}

TEST_F(SideFilesOfTrainers, TheConfigurationGoesWithTheModelOfATag) {
  write_file(run_ / "config.json", "{\"dtype\": \"bfloat16\"}");
  for (const Path& input : {run_, run_ / "global_step7"}) {
    fs::remove_all(out_);
    EXPECT_EQ(report_of({"zero_to_fp32", input, out_})["side_files"],
              Json({"config.json", "modeling_x.py"}));
    EXPECT_EQ(parse_json(read_file(out_ / "config.json"), "config")["dtype"], "float32");
  }
}

TEST_F(SideFilesOfTrainers, OverwriteNothing) {
  fs::create_directory(out_);
  write_file(out_ / "scheduler.pt", "another");
  EXPECT_EQ(unishard({"reshard", run_, out_, "-w", "3", "-q"}).status, 0);
  EXPECT_EQ(read_file(out_ / "scheduler.pt"), "another");
  EXPECT_TRUE(fs::exists(out_ / "trainer_state.json"));
}

TEST_F(SideFilesOfTrainers, StayWhereNoTrainerWroteThem) {
  for (const char* name : {"trainer_state.json", "training_args.bin"}) fs::remove(run_ / name);
  EXPECT_EQ(report_of({"reshard", run_, out_, "-w", "3"})["side_files"], Json::array());
  EXPECT_FALSE(fs::exists(out_ / "scheduler.pt"));
}

}  // namespace
}  // namespace unishard::test
