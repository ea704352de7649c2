// What goes along with a checkpoint of a Trainer, and what its output folder means to each verb.
#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/json.hpp"

#include "expect.hpp"
#include "fixtures.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const fs::path kFolders = fs::path(UNISHARD_TEST_DATA) / "golden/trainer";

class RunFiles : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"checkpoint-9", "checkpoint-10"}) {
      fs::create_directories(run_);
      fs::copy(kFolders / "llama", run_ / name);
      for (const char* state : {"rng_state_0.pth", "training_args.bin"})
        fs::copy_file(kFolders / "llama/scheduler.pt", run_ / name / state);
      write_file(run_ / name / "helpers.py", "import os");
    }
  }
  std::vector<std::string> files_of(const fs::path& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  fs::path convert(const fs::path& from, const std::string& name, const std::string& format) {
    report_of({"convert", from, temp_.path() / name, "--to", format});
    return temp_.path() / name;
  }
  /// Writes a run of two ranks from a file whose parameters have numbers.
  fs::path as_deepspeed(const fs::path& saved, const std::string& stage) {
    report_of({"convert", saved, temp_.path() / stage, "--to", "deepspeed", "-w", "2", "-s", stage,
               "--assume-model-order"});
    return temp_.path() / stage;
  }

  const TempDir temp_;
  const fs::path run_ = temp_.path() / "run";
};

TEST_F(RunFiles, GoThroughEveryFormatThatARunGoesOnFrom) {
  const fs::path saved = run_ / "checkpoint-10";
  for (const char* format : {"trainer", "native", "dcp", "deepspeed", "deepspeed-universal"}) {
    const fs::path there = convert(saved, std::string("to-") + format, format);
    const fs::path back = convert(there, std::string("back-") + format, "trainer");
    EXPECT_EQ(files_of(back), files_of(saved)) << format;
    for (const char* name : {"rng_state_0.pth", "training_args.bin", "helpers.py", "scheduler.pt",
                             "trainer_state.json", "config.json"})
      EXPECT_EQ(read_file(back / name), read_file(saved / name)) << format << " " << name;
    EXPECT_EQ(unishard({"diff", saved, back, "--quiet"}).status, 0) << format;
    EXPECT_EQ(unishard({"verify", there, "--deep"}).status, 0) << format;
  }
}

TEST_F(RunFiles, ANewProgressOfTheTrainerIsNamed) {
  const fs::path file = temp_.path() / "run.pt";
  ASSERT_EQ(unishard({"convert", run_ / "checkpoint-10", file, "-q"}).status, 0);
  const ProcessResult made = unishard({"convert", file, temp_.path() / "made", "--to", "trainer"});
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr("trainer_state.json is new: the Trainer takes save_steps"));
  EXPECT_THAT(read_file(temp_.path() / "made/trainer_state.json"),
              HasSubstr("\"save_steps\": 500"));
  const ProcessResult kept =
      unishard({"convert", run_ / "checkpoint-10", temp_.path() / "kept", "--to", "trainer"});
  EXPECT_THAT(kept.err, Not(HasSubstr("is new")));
}

TEST_F(RunFiles, StepsThatNothingCountsAreNamed) {
  const auto said = [&](const fs::path& run, const std::string& name) {
    return report_of({"convert", run, temp_.path() / name, "--to", "trainer",
                      "--assume-model-order"})["remarks"]
        .dump();
  };
  const fs::path golden = fs::path(UNISHARD_TEST_DATA) / "golden/torch";
  EXPECT_THAT(said(golden / "sgd.pt", "sgd"), HasSubstr("global_step is 0 in trainer_state.json"));
  EXPECT_THAT(said(golden / "unused_parameter.pt", "adam"), Not(HasSubstr("global_step")));
}

/// The Trainer makes an optimizer of two groups, whatever the checkpoint has.
TEST_F(RunFiles, GroupsThatTheTrainerDoesNotMakeAreNamed) {
  const auto said = [&](const fs::path& run, const std::string& name) {
    return report_of({"convert", run, temp_.path() / name, "--to", "trainer",
                      "--assume-model-order"})["remarks"]
        .dump();
  };
  EXPECT_THAT(said(fs::path(UNISHARD_TEST_DATA) / "golden/torch/sgd.pt", "one"),
              AllOf(HasSubstr("has 1 parameter group, and"), HasSubstr("create_optimizer()")));
  const fs::path native = convert(run_ / "checkpoint-10", "native", "native");
  EXPECT_THAT(said(native, "two"), Not(HasSubstr("create_optimizer")));
}

/// Of LoRA the Trainer's second group is empty, and DeepSpeed has no empty groups.
TEST_F(RunFiles, GroupsWithoutParametersComeBack) {
  const Json groups = report_of({"inspect", kFolders / "adapter"})["groups"];
  ASSERT_EQ(groups.size(), 2u);
  ASSERT_EQ(groups[1]["params"], Json::array());
  for (const char* format : {"deepspeed", "deepspeed-universal", "native", "dcp"}) {
    const fs::path there = convert(kFolders / "adapter", std::string("to-") + format, format);
    EXPECT_EQ(report_of({"inspect", there})["groups"].size(), 2u) << format;
    const fs::path back = convert(there, std::string("back-") + format, "trainer");
    EXPECT_EQ(report_of({"inspect", back})["groups"][1], groups[1]) << format;
    EXPECT_EQ(unishard({"diff", kFolders / "adapter", back, "--quiet"}).status, 0) << format;
  }
}

TEST_F(RunFiles, MastersThatAreMadeOfNarrowWeightsAreNamed) {
  SKIP_WITHOUT_FIXTURES();
  const auto said = [&](const fs::path& run, const std::string& name) {
    return report_of({"convert", run, temp_.path() / name, "--to", "deepspeed"})["remarks"].dump();
  };
  EXPECT_THAT(said(fixtures() / "torch/dcp_fsdp2_bf16_w2/checkpoint", "narrow"),
              HasSubstr("have no float32 masters, which DeepSpeed trains: new ones are made of "
                        "their bfloat16 weights"));
  EXPECT_THAT(said(run_ / "checkpoint-10", "wide"), Not(HasSubstr("masters")));
}

/// The Trainer writes no schedule beside DeepSpeed's own.
TEST_F(RunFiles, AScheduleOfDeepSpeedIsNotMissing) {
  const fs::path there = convert(run_ / "checkpoint-10", "there", "deepspeed");
  fs::remove(there / "scheduler.pt");
  const fs::path made = convert(there, "made", "accelerate");
  EXPECT_THAT(unishard({"verify", made}).out, Not(HasSubstr("scheduler")));
}

TEST_F(RunFiles, AnOptimizerThatIsNotBesideItsScheduleIsMissing) {
  const fs::path accelerate = convert(run_ / "checkpoint-10", "accelerate", "accelerate");
  for (const auto& [folder, name] :
       {std::pair{run_ / "checkpoint-10", "optimizer.pt"}, {accelerate, "optimizer.bin"}}) {
    fs::remove(folder / name);
    const ProcessResult seen = unishard({"verify", folder});
    EXPECT_EQ(seen.status, 1) << seen.out;
    EXPECT_THAT(seen.out, AllOf(HasSubstr("incomplete"), HasSubstr(name),
                                HasSubstr("no file of it is beside the schedule's")));
    const Json report =
        report_of({"convert", folder, temp_.path() / ("copy-of-" + folder.filename().string()),
                   "--to", "native"});
    EXPECT_THAT(report["left_out"].dump(), HasSubstr(name));
  }
}

TEST_F(RunFiles, ThatNobodyKnowsAreNamed) {
  const fs::path saved = run_ / "checkpoint-10";
  write_file(saved / "notes.txt", "mine");
  write_file(saved / "ema.pt", "mine");
  fs::create_directory(saved / "eval");
  for (const char* format : {"trainer", "native"}) {
    const Json report = report_of({"convert", saved, temp_.path() / format, "--to", format});
    EXPECT_EQ(report["left_out"].size(), 3u) << report["left_out"];
    for (const char* name : {"notes.txt: neither", "weights \\\"ema.pt", "left out: file"})
      EXPECT_THAT(report["left_out"].dump(), HasSubstr(name)) << format;
  }
}

TEST_F(RunFiles, OfTheTrainerGetTheNamesOfAccelerate) {
  const fs::path made = convert(run_ / "checkpoint-10", "made", "accelerate");
  EXPECT_THAT(files_of(made),
              AllOf(testing::Contains("scheduler.bin"), Not(testing::Contains("scheduler.pt"))));
  EXPECT_EQ(read_file(made / "scheduler.bin"), read_file(run_ / "checkpoint-10/scheduler.pt"));
}

TEST_F(RunFiles, AreNamedWhereAModelCannotHoldThem) {
  const Json report = report_of(
      {"convert", run_ / "checkpoint-10", temp_.path() / "all.safetensors", "--to", "safetensors"});
  EXPECT_THAT(report["left_out"].dump(),
              AllOf(HasSubstr("files of the training run"), HasSubstr("rng_state_0.pth")));
  const Json model = report_of({"convert", run_ / "checkpoint-10", temp_.path() / "model", "--to",
                                "safetensors", "--weights-only", "--strict"});
  EXPECT_EQ(model["side_files"], Json({"config.json"}));
}

TEST_F(RunFiles, OfGeneratorsAreCopiedWithARemark) {
  const auto remarks = [&](const std::string& ranks) {
    fs::remove_all(temp_.path() / "out");
    return report_of({"convert", run_ / "checkpoint-10", temp_.path() / "out", "--to", "deepspeed",
                      "-w", ranks})["remarks"]
        .dump();
  };
  EXPECT_THAT(remarks("1"), Not(HasSubstr("random generators")));
  EXPECT_THAT(remarks("3"), HasSubstr("those of 1 ranks and are copied as they are: of 3 ranks"));
}

TEST_F(RunFiles, ModelBesideATagIsNotTakenForTheCheckpoint) {
  const fs::path made = convert(run_ / "checkpoint-10", "made", "deepspeed");
  fs::copy_file(kFolders / "llama/model.safetensors", made / "model.safetensors");
  const Json report = report_of({"reshard", made, temp_.path() / "out", "-w", "2"});
  EXPECT_EQ(report["from"], "deepspeed");
  EXPECT_THAT(report["side_files"], testing::Contains(Json("trainer_state.json")));
  EXPECT_THAT(report["remarks"].dump(), HasSubstr("model.safetensors is not copied"));
}

TEST_F(RunFiles, OutputFolderMeansItsNewestCheckpoint) {
  const auto looked_at = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"inspect", run_});
    return report_of(more)["path"].get<std::string>();
  };
  EXPECT_EQ(looked_at({}), run_ / "checkpoint-10");
  EXPECT_EQ(looked_at({"--tag", "checkpoint-9"}), run_ / "checkpoint-9");
  EXPECT_EQ(unishard({"inspect", run_, "--tag", "checkpoint-8"}).status, 6);
  for (const char* verb : {"reshard", "convert"}) {
    const fs::path out = temp_.path() / verb;
    const Json report = report_of({verb, run_, out, "--to", "dcp", "-w", "2"});
    EXPECT_EQ(report["from"], "trainer") << verb;
  }
  EXPECT_EQ(unishard({"zero_to_fp32", run_, temp_.path() / "model", "-q"}).status, 0);
  EXPECT_EQ(unishard({"diff", run_, run_ / "checkpoint-10"}).status, 0);
}

TEST_F(RunFiles, OutputFolderIsListedVerifiedAndNeverPruned) {
  convert(run_ / "checkpoint-9", "run/checkpoint-11", "deepspeed");
  const Json listed = report_of({"inspect", run_, "--tags"})["tags"];
  ASSERT_EQ(listed.size(), 3u) << listed.dump();
  EXPECT_EQ(listed[0]["tag"], "checkpoint-9");
  EXPECT_EQ(listed[1]["tag"], "checkpoint-10");
  EXPECT_EQ(listed[2]["tag"], "checkpoint-11");
  const auto checked = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"verify", run_});
    return report_of(more)["checked"];
  };
  EXPECT_EQ(checked({}).size(), 1u);
  EXPECT_EQ(checked({})[0]["format"], "deepspeed");
  EXPECT_EQ(checked({"--tag", "checkpoint-9"})[0]["format"], "trainer");
  EXPECT_EQ(checked({"--all", "--deep"}).size(), 3u);
  for (const bool is_dry : {true, false}) {
    std::vector<std::string> arguments = {"prune", run_, "--keep-last", "1"};
    if (is_dry) arguments.emplace_back("--dry-run");
    const Json pruned = report_of(arguments);
    EXPECT_EQ(pruned["removed"], Json::array());
    EXPECT_EQ(pruned["kept"].size(), 3u);
    EXPECT_THAT(pruned["kept"].dump(), HasSubstr("prune removes UniShard's own only"));
  }
  EXPECT_TRUE(fs::exists(run_ / "checkpoint-9/model.safetensors"));
}

// As UniShard's plug-in for the Trainer saves: a checkpoint of UniShard among the Trainer's files.
TEST_F(RunFiles, OfATrainerWithThePlugInGoAlong) {
  const fs::path output = temp_.path() / "plug", folder = output / "checkpoint-10";
  fs::create_directory(output);
  convert(run_ / "checkpoint-10", "plug/checkpoint-10", "native");
  const fs::path tag = folder / list_tags(posix_storage(), folder).at(0).tag;
  for (const std::string& name : files_of(tag)) {
    if (name != "manifest.json" && !name.starts_with("shard-"))
      fs::rename(tag / name, folder / name);
  }
  for (const fs::path& from : {folder, output}) {
    const fs::path back = convert(from, "back", "trainer");
    EXPECT_EQ(files_of(back), files_of(run_ / "checkpoint-10")) << from;
    fs::remove_all(back);
    ASSERT_EQ(unishard({"zero_to_fp32", from, back.string() + "/"}).status, 0);
    EXPECT_TRUE(fs::exists(back / "config.json")) << from;
    fs::remove_all(back);
  }
  EXPECT_THAT(unishard({"inspect", output, "--tags"}).out, HasSubstr("checkpoint-10"));
  EXPECT_EQ(unishard({"verify", output, "--all"}).status, 0);
}

TEST_F(RunFiles, OfAccelerateWithThePlugInGoAlong) {
  const fs::path folder = temp_.path() / "acc";
  fs::create_directory(folder);
  convert(run_ / "checkpoint-10", "acc/unishard", "native");
  for (const char* name : {"random_states_0.pkl", "scheduler.bin"})
    fs::copy(run_ / "checkpoint-10/scheduler.pt", folder / name);
  for (const char* verb : {"verify", "inspect"})
    EXPECT_EQ(unishard({verb, folder}).status, 0) << verb;
  EXPECT_EQ(unishard({"diff", folder, run_ / "checkpoint-10"}).status, 0);
  EXPECT_THAT(files_of(convert(folder, "back", "accelerate")),
              testing::Contains("random_states_0.pkl"));
  convert(run_ / "checkpoint-10", "acc/unishard_1", "native");
  const ProcessResult two = unishard({"inspect", folder});
  EXPECT_EQ(two.status, 2);
  EXPECT_THAT(two.err, HasSubstr("unishard inspect: error: "));
  EXPECT_THAT(two.err, HasSubstr("holds the checkpoints of several models"));
}

TEST_F(RunFiles, AdapterOfARunUnderDeepSpeedBecomesAnAdapter) {
  const fs::path made = convert(kFolders / "adapter", "made", "deepspeed");
  EXPECT_TRUE(fs::exists(made / "adapter_config.json"));
  EXPECT_EQ(report_of({"zero_to_fp32", made, temp_.path() / "model"})["tensors"], 5);
  const Json model = report_of({"inspect", temp_.path() / "model"});
  std::vector<std::string> names;
  for (const Json& tensor : model["tensors"]) names.push_back(tensor["name"]);
  EXPECT_THAT(names, testing::Contains("base_model.model.lm_head.weight"));
  EXPECT_EQ(unishard({"diff", kFolders / "adapter/adapter_model.safetensors",
                      temp_.path() / "model/adapter_model.safetensors"})
                .status,
            0);
  EXPECT_THAT(files_of(temp_.path() / "model"),
              testing::ElementsAre("adapter_config.json", "adapter_model.safetensors"));
}

TEST_F(RunFiles, AnAdaptersFolderHasNoPlaceForItsOptimizer) {
  const fs::path made = temp_.path() / "made", file = temp_.path() / "one.safetensors";
  const ProcessResult refused =
      unishard({"convert", kFolders / "adapter", made, "--to", "safetensors"});
  EXPECT_EQ(refused.status, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("--weights-only"));
  EXPECT_FALSE(fs::exists(made));
  for (const fs::path& out : {made, file}) {
    ASSERT_EQ(
        unishard({"convert", kFolders / "adapter", out, "--to", "safetensors", "--weights-only"})
            .status,
        0);
    const fs::path result = out == made ? made / "adapter_model.safetensors" : out;
    EXPECT_EQ(unishard({"diff", kFolders / "adapter/adapter_model.safetensors", result}).status, 0);
  }
}

/// Users save the merged model into the folder of its adapter.
TEST_F(RunFiles, AWholeModelBesideAnAdapterStaysOne) {
  const fs::path saved = temp_.path() / "saved", native = temp_.path() / "native";
  fs::copy(kFolders / "adapter", saved);
  write_file(saved / "config.json", R"({"model_type": "mine"})");
  fs::copy_file(run_ / "checkpoint-10/model.safetensors", saved / "model.safetensors");
  for (const char* name : {"optimizer.pt", "trainer_state.json", "training_args.bin"})
    fs::remove(saved / name);
  ASSERT_EQ(unishard({"convert", saved, native, "--to", "native"}).status, 0);
  const fs::path model = temp_.path() / "model";
  for (const fs::path& input : {saved, native}) {
    fs::remove_all(model);
    const ProcessResult result = unishard({"convert", input, model, "--to", "safetensors"});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(files_of(model), testing::ElementsAre("config.json", "model.safetensors"));
    EXPECT_EQ(unishard({"diff", saved, model, "--quiet"}).status, 0);
    if (input == saved) {
      EXPECT_THAT(result.err, HasSubstr("adapter_config.json: the result is the whole model"));
    }
  }
}

/// Before safetensors PEFT saved an adapter with torch.save.
TEST_F(RunFiles, AFolderWithAnAdapterOfTorchIsAModel) {
  const fs::path saved = temp_.path() / "saved", model = temp_.path() / "model";
  fs::create_directory(saved);
  fs::copy_file(kFolders / "adapter/adapter_config.json", saved / "adapter_config.json");
  ASSERT_EQ(unishard({"convert", kFolders / "adapter/adapter_model.safetensors",
                      saved / "adapter_model.bin", "--to", "torch"})
                .status,
            0);
  EXPECT_EQ(report_of({"inspect", saved})["format"], "torch");
  ASSERT_EQ(unishard({"zero_to_fp32", saved, model}).status, 0);
  EXPECT_THAT(files_of(model),
              testing::ElementsAre("adapter_config.json", "adapter_model.safetensors"));
  EXPECT_EQ(unishard({"diff", model, kFolders / "adapter/adapter_model.safetensors"}).status, 0);
}

/// PEFT saves an adapter that is not called "default" into a folder of its name.
TEST_F(RunFiles, AnAdapterInAFolderOfItsNameIsATrainersModel) {
  const fs::path saved = run_ / "checkpoint-11";
  fs::copy(kFolders / "adapter", saved);
  fs::create_directory(saved / "mine");
  for (const char* name : {"adapter_model.safetensors", "adapter_config.json"})
    fs::rename(saved / name, saved / "mine" / name);
  const ProcessResult seen = unishard({"inspect", saved});
  EXPECT_EQ(seen.status, 0) << seen.err;
  EXPECT_THAT(seen.out, AllOf(HasSubstr("called \"mine\" in the run"), Not(HasSubstr("left out"))));
  const fs::path made = convert(saved, "made", "trainer");
  EXPECT_EQ(files_of(made), files_of(kFolders / "adapter"));
  EXPECT_EQ(read_file(made / "adapter_config.json"), read_file(saved / "mine/adapter_config.json"));
  for (const fs::path& other : {made, kFolders / "adapter"})
    EXPECT_EQ(unishard({"diff", saved, other, "--quiet"}).status, 0) << other;
  fs::copy(saved / "mine", saved / "other");
  const ProcessResult several = unishard({"inspect", saved});
  EXPECT_EQ(several.status, 6) << several.err;
  EXPECT_THAT(several.err, HasSubstr("the adapters mine, other, and nothing tells which"));
}

/// With a second adapter nothing tells which of them was trained.
TEST_F(RunFiles, OfTwoAdaptersNoneIsGuessed) {
  const fs::path saved = run_ / "checkpoint-11";
  fs::copy(kFolders / "adapter", saved);
  fs::create_directory(saved / "second");
  for (const char* name : {"adapter_model.safetensors", "adapter_config.json"})
    fs::copy_file(saved / name, saved / "second" / name);
  EXPECT_THAT(unishard({"inspect", saved}).out,
              AllOf(HasSubstr("state.0"), HasSubstr("the adapter second too, which has the same "
                                                    "shapes and may be the one that was trained")));
  const fs::path made = temp_.path() / "made";
  const Json told = report_of({"convert", saved, made, "--to", "native", "--assume-model-order"});
  EXPECT_EQ(unishard({"diff", saved, made, "--quiet"}).status, 1);
  EXPECT_EQ(unishard({"diff", saved, made, "--quiet", "--assume-model-order"}).status, 0);
  EXPECT_THAT(told["left_out"].dump(), HasSubstr("second/adapter_model.safetensors"));
  EXPECT_EQ(unishard({"diff", made, kFolders / "adapter", "--quiet"}).status, 0);
  const fs::path copy = convert(saved, "copy", "trainer");
  EXPECT_EQ(unishard({"diff", saved, copy, "--quiet"}).status, 0);
  const fs::path again = convert(copy, "again", "trainer");
  for (const fs::path& folder : {copy, again})
    EXPECT_THAT(unishard({"inspect", folder}).out,
                AllOf(HasSubstr("state.0"), HasSubstr("had the adapter \"second\" too")));
  report_of({"convert", copy, temp_.path() / "told", "--to", "trainer", "--assume-model-order"});
  EXPECT_EQ(unishard({"diff", temp_.path() / "told", kFolders / "adapter", "--quiet"}).status, 0);
}

TEST_F(RunFiles, AnAdapterInATorchFileStaysOne) {
  const fs::path file = temp_.path() / "one.pt", back = temp_.path() / "back";
  ASSERT_EQ(unishard({"convert", kFolders / "adapter", file, "--to", "torch"}).status, 0);
  ASSERT_EQ(unishard({"convert", file, back, "--to", "trainer"}).status, 0);
  EXPECT_TRUE(fs::exists(back / "adapter_model.safetensors"));
  EXPECT_FALSE(fs::exists(back / "model.safetensors"));
}

TEST_F(RunFiles, AConfigurationBesideLatestMakesAnAdapterToo) {
  const fs::path made = convert(kFolders / "adapter", "made", "native");
  std::string tag = read_file(made / "latest");
  tag.pop_back();
  for (const fs::path& place : {made, made / tag}) {
    fs::remove(made / "adapter_config.json");
    fs::remove(made / tag / "adapter_config.json");
    fs::copy_file(kFolders / "adapter/adapter_config.json", place / "adapter_config.json");
    const fs::path model = temp_.path() / "model";
    fs::remove_all(model);
    ASSERT_EQ(unishard({"zero_to_fp32", made, model, "-q"}).status, 0);
    EXPECT_THAT(files_of(model),
                testing::ElementsAre("adapter_config.json", "adapter_model.safetensors"));
  }
}

TEST_F(RunFiles, StatesWithoutNamesAreNoneForDeepSpeed) {
  write_file(run_ / "checkpoint-10/config.json", R"({"model_type": "mine"})");
  const ProcessResult result =
      unishard({"convert", run_ / "checkpoint-10", temp_.path() / "out", "--to", "deepspeed"});
  EXPECT_EQ(result.status, 6);
  EXPECT_THAT(result.err, HasSubstr("nothing says of which parameters they are"));
  EXPECT_FALSE(fs::exists(temp_.path() / "out"));
  const fs::path back = convert(convert(run_ / "checkpoint-10", "dcp", "dcp"), "back", "trainer");
  EXPECT_EQ(unishard({"diff", run_ / "checkpoint-10", back}).status, 0);
}

// SGD without momentum leaves groups and no states.
TEST_F(RunFiles, AnOptimizerWithoutStatesBecomesADeepSpeedRun) {
  const fs::path saved = fs::path(UNISHARD_TEST_DATA) / "golden/torch/sgd.pt";
  for (const std::string stage : {"0", "1", "3"}) {
    const fs::path made = as_deepspeed(saved, stage);
    const Json seen = report_of({"inspect", made});
    ASSERT_EQ(seen["tensors"].size(), 4u);
    EXPECT_EQ(seen["tensors"][0]["state"], "fp32");
    EXPECT_EQ(seen["groups"][0]["momentum"], 0);
    EXPECT_FALSE(seen["groups"][0].contains("betas"));
    const fs::path back = temp_.path() / (stage + ".pt");
    report_of({"convert", made, back});
    EXPECT_EQ(report_of({"inspect", back})["groups"][0]["params"],
              Json({"0.weight", "0.bias", "2.weight", "2.bias"}));
    report_of({"zero_to_fp32", made, temp_.path() / (stage + ".safetensors")});
    EXPECT_EQ(unishard({"diff", saved, temp_.path() / (stage + ".safetensors"), "-q"}).status, 0);
  }
}

// DeepSpeed has masters in one type for a group: the widest.
TEST_F(RunFiles, WeightsInFloat64OfAnOptimizerWithoutStatesAreMasters) {
  const fs::path saved = fs::path(UNISHARD_TEST_DATA) / "golden/torch/sgd_float64.pt";
  for (const std::string stage : {"0", "1", "3"}) {
    const Json seen = report_of({"inspect", as_deepspeed(saved, stage)});
    ASSERT_EQ(seen["tensors"].size(), 4u);
    for (const Json& tensor : seen["tensors"]) {
      EXPECT_EQ(tensor["state"], "fp32");
      EXPECT_EQ(tensor["dtype"], "float64");
    }
  }
}

TEST_F(RunFiles, NamesThatTheUsersWordGivesAreInTheCopy) {
  const fs::path saved = fs::path(UNISHARD_TEST_DATA) / "golden/torch/unused_parameter.pt";
  const fs::path copy = temp_.path() / "copy.pt", native = temp_.path() / "native";
  report_of({"convert", saved, copy, "--to", "torch", "--assume-model-order"});
  report_of({"convert", saved, native, "--to", "native", "--assume-model-order"});
  EXPECT_EQ(unishard({"diff", copy, native}).status, 0);
  Json listed = report_of({"inspect", native})["groups"];
  for (Json& group : listed) group["param_names"] = group["params"];  // as torch.optim lists them
  EXPECT_EQ(report_of({"inspect", copy})["groups"], listed);
}

/// trainer_state.json is the last file of a save.
TEST_F(RunFiles, AProgressThatIsCutIsSaidBesideTheModelToo) {
  const fs::path saved = run_ / "checkpoint-10";
  const std::string text = read_file(saved / "trainer_state.json");
  write_file(saved / "trainer_state.json", text.substr(0, text.size() / 2));
  const ProcessResult model = unishard({"zero_to_fp32", saved, temp_.path() / "m.safetensors"});
  EXPECT_EQ(model.status, 0);
  EXPECT_THAT(model.err, HasSubstr("trainer_state.json: not valid JSON"));
  EXPECT_NE(unishard({"convert", saved, temp_.path() / "native", "--to", "native"}).status, 0);
  EXPECT_THAT(unishard({"verify", saved}).out, HasSubstr("trainer_state.json"));
  fs::remove(saved / "optimizer.pt");
  write_file(saved / "trainer_state.json", text);
  EXPECT_THAT(unishard({"zero_to_fp32", saved, temp_.path() / "n.safetensors"}).err,
              Not(HasSubstr("left out")));
}

TEST_F(RunFiles, AModuleThatIsCalledModuleIsReadBack) {
  const fs::path folder = temp_.path() / "folder";
  report_of({"convert", run_ / "checkpoint-10", folder, "--to", "dcp", "--rename", "^=module."});
  EXPECT_THAT(report_of({"inspect", folder})["tensors"][0]["name"].get<std::string>(),
              testing::StartsWith("module."));
  for (const char* name :
       {"weights.pt", "all.pt", "model.safetensors", "w.npz", "w.h5", "w.gguf"}) {
    const fs::path made = temp_.path() / name;
    std::vector<std::string> command = {"convert", folder, made};
    if (std::string_view(name) != "all.pt") command.push_back("--weights-only");
    report_of(command);
    const ProcessResult compared = unishard({"diff", folder, made});
    EXPECT_EQ(compared.status, 0) << name << compared.out << compared.err;
  }
  const Json compared = report_of({"diff", folder, temp_.path() / "weights.pt"});
  EXPECT_THAT(compared.dump(), HasSubstr("of A all begin with \\\"module.\\\""));
}

TEST_F(RunFiles, ResultInsideACheckpointIsRefused) {
  const ProcessResult result =
      unishard({"convert", run_ / "checkpoint-9", run_ / "checkpoint-10/native", "--to", "native"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("lies inside the checkpoint"));
}

}  // namespace
}  // namespace unishard::test
