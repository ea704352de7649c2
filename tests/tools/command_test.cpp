// The real program, as a user starts it.
#include "unishard/converters/registry.hpp"
#include "unishard/format/checkpoint_reader.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <sstream>

namespace unishard::test {
namespace {

bool holds(const std::string& text, std::string_view words) {
  return text.find(words) != std::string::npos;
}

class Command : public testing::Test {
 protected:
  void SetUp() override { tag_ = write_example(in_, {.bf16 = true}); }

  /// Overwrites a few bytes of tensors in the rank's shard.
  void damage_payload(std::size_t rank) const {
    std::uint64_t offset = 0;
    std::filesystem::path path;
    {
      const CheckpointReader reader(posix_storage(), tag_);
      const ShardEntry& entry = reader.manifest().shards.at(rank);
      path = tag_ / entry.file;
      offset = entry.data_sets.at(0).offset;
    }
    overwrite(path, offset, "damage");
  }

  const TempDir temp_;
  const std::string in_ = temp_.path() / "in";
  const std::string out_ = temp_.path() / "out";
  std::filesystem::path tag_;
};

TEST_F(Command, AnOutputsSuffixIsThatOfItsFormat) {
  const auto refusal = [&](const std::string& verb, const std::string& name,
                           const std::vector<std::string>& more) {
    std::vector<std::string> words = {verb, in_, temp_.path() / name};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult done = unishard(words);
    EXPECT_EQ(done.status, 2) << name;
    EXPECT_FALSE(std::filesystem::exists(temp_.path() / name)) << name;
    return done.err;
  };
  EXPECT_TRUE(holds(refusal("convert", "x.pt", {"--to", "safetensors"}), "pass --to torch"));
  EXPECT_TRUE(holds(refusal("convert", "x.safetensors", {"--to", "dcp"}), "a safetensors file"));
  EXPECT_TRUE(holds(refusal("reshard", "x.bin", {"-w", "3"}), "a torch file"));
  EXPECT_TRUE(holds(refusal("zero_to_fp32", "x.onnx", {}), ".onnx files cannot be written"));
  EXPECT_TRUE(holds(refusal("convert", "x.npz", {"--to", "gguf"}), "pass --to npz"));
  EXPECT_TRUE(holds(refusal("convert", "x.weights", {"--to", "npz"}), "npz files end in .npz"));
  EXPECT_TRUE(holds(refusal("convert", "x.safetensor", {"--to", "safetensors"}),
                    "did you mean .safetensors?"));
}

TEST(CommandUsage, HelpVersionAndErrors) {
  EXPECT_EQ(unishard({"--version"}).status, 0);
  EXPECT_TRUE(holds(unishard({"--version"}).out, "format 1"));
  EXPECT_EQ(unishard({}).status, 2);
  const ProcessResult none = unishard({"frobnicate"});
  EXPECT_EQ(none.status, 2);
  EXPECT_TRUE(holds(none.err, "there is no verb \"frobnicate\"")) << none.err;
  EXPECT_FALSE(holds(none.err, "do you mean")) << none.err;
  for (const auto& [typed, meant] :
       {std::pair{"inspec", "inspect"}, {"verfiy", "verify"}, {"zero", "zero_to_fp32"}}) {
    EXPECT_TRUE(holds(unishard({typed}).err, std::string("do you mean ") + meant + "?")) << typed;
  }
  const ProcessResult empty = unishard({"verify", "--tag=", "runs/gpt"});
  EXPECT_EQ(empty.status, 2);
  EXPECT_TRUE(holds(empty.err, "--tag has no value")) << empty.err;
  EXPECT_EQ(unishard({"help"}).out, unishard({"--help"}).out);
  EXPECT_EQ(unishard({"help", "diff"}).out, unishard({"diff", "--help"}).out);
  for (const char* version : {"version", "-v"})
    EXPECT_EQ(unishard({version}).out, unishard({"--version"}).out);
  for (const char* verb :
       {"zero_to_fp32", "reshard", "inspect", "verify", "diff", "report", "prune", "launch",
        "config", "estimate", "env", "formats", "completion"}) {
    const ProcessResult help = unishard({verb, "--help"});
    EXPECT_EQ(help.status, 0) << verb;
    EXPECT_TRUE(holds(help.out, "--")) << verb;
  }
  const ProcessResult wrong = unishard({"inspect", "x", "--frobnicate"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_TRUE(wrong.err.starts_with("unishard inspect: error: ")) << wrong.err;
  EXPECT_TRUE(holds(wrong.err, "\n  hint: ")) << wrong.err;
}

TEST_F(Command, EnvAndCompletion) {
  EXPECT_TRUE(report_of({"env"}).contains("hdf5"));
  EXPECT_TRUE(report_of({"env"}).at("formats").contains("gguf"));
  const Json machine = report_of({"env"});
  EXPECT_GT(machine.at("available_memory_bytes").get<std::uint64_t>(), 0u);
  EXPECT_TRUE(machine.at("trainer").contains("nccl"));
  const std::string text = unishard({"env"}).out;
  for (const char* line : {"\ntrainer      ", "\nmemory       ", "in /dev/shm", "\nGPUs         "})
    EXPECT_TRUE(holds(text, line)) << text;
  const ProcessResult bash = unishard({"completion", "bash"});
  EXPECT_TRUE(holds(bash.out, "--keep-last"));
  EXPECT_TRUE(holds(bash.out, "verify) words='--help "));
  EXPECT_EQ(run({"bash", "-n", "-c", bash.out}).status, 0);
  EXPECT_TRUE(holds(unishard({"completion", "zsh"}).out, "#compdef unishard"));
  const ProcessResult fish = unishard({"completion", "fish"});
  EXPECT_TRUE(holds(fish.out, "-l keep-last"));
  write_file(temp_.path() / "unishard.fish", fish.out);
  if (run({"sh", "-c", "command -v fish"}).status == 0) {
    const ProcessResult parsed = run({"fish", "--no-execute", temp_.path() / "unishard.fish"});
    EXPECT_EQ(parsed.status, 0) << parsed.err;
  }
}

TEST_F(Command, TheManualPageShowsEveryVerbWithoutWarnings) {
  const ProcessResult page = unishard({"man-page"});
  EXPECT_EQ(page.status, 0);
  const std::string help = unishard({"--help"}).out;
  EXPECT_FALSE(holds(help, "man-page"));
  EXPECT_FALSE(holds(page.out, "agent")) << "an option that help does not show";
  for (const char* verb :
       {"zero_to_fp32", "convert", "reshard", "inspect", "verify", "diff", "prune", "launch",
        "config", "estimate", "env", "formats", "completion"}) {
    EXPECT_TRUE(holds(help, verb)) << verb;
    EXPECT_TRUE(holds(page.out, fmt::format(".SS {}\n", verb))) << verb;
  }
  write_file(temp_.path() / "unishard.1", page.out);
  if (run({"sh", "-c", "command -v groff"}).status != 0) GTEST_SKIP() << "groff is not installed";
  const ProcessResult shown = run({"groff", "-man", "-Tutf8", "-ww", temp_.path() / "unishard.1"});
  EXPECT_EQ(shown.status, 0);
  EXPECT_EQ(shown.err, "");
}

// For example a generator's state in a DCP folder. DeepSpeed has no place for it, which is no
// damage.
TEST_F(Command, WhatDeepSpeedCannotHoldIsANoteAndNoDifference) {
  CheckpointSpec spec;
  Catalog catalog = example_catalog(spec);
  TensorInfo extra = catalog.tensors.front();
  extra.fqn = "rng";
  extra.state = "extra";
  extra.group = -1;
  catalog.tensors.push_back(extra);
  const std::string with_extra = temp_.path() / "extra";
  converters::Output to;
  to.format = "native";
  to.path = with_extra;
  to.tag = "global_step1";
  const auto sink = converters::make_sink(posix_storage(), to, catalog);
  for (std::size_t i = 0; i < sink->fragments().size(); ++i) {
    const Fragment& fragment = sink->fragments()[i];
    sink->write(i, fragment.range, example_bytes(catalog, fragment.tensor, 1, fragment.range));
  }
  sink->commit();
  for (const char* format : {"deepspeed", "deepspeed-universal"}) {
    const ProcessResult made =
        unishard({"convert", with_extra, temp_.path() / format, "--to", format});
    EXPECT_EQ(made.status, 0) << made.err;
    EXPECT_TRUE(holds(made.err, "rng [extra]")) << made.err;
    EXPECT_FALSE(holds(made.err, "DIFFERENT")) << made.err;
  }
  EXPECT_EQ(unishard({"convert", with_extra, out_, "--to", "deepspeed", "--strict"}).status, 6);
}

TEST_F(Command, ExitStatusesTellTheKindOfFailure) {
  EXPECT_EQ(unishard({"inspect", temp_.path() / "missing"}).status, 3);
  write_file(temp_.path() / "bad.safetensors", "garbage!garbage");
  EXPECT_EQ(unishard({"inspect", temp_.path() / "bad.safetensors"}).status, 4);
  EXPECT_EQ(unishard({"reshard", in_, out_, "-w", "0"}).status, 2);
  EXPECT_EQ(unishard({"reshard", in_, out_, "-w", "2", "--stage", "7"}).status, 2);
  EXPECT_EQ(unishard({"convert", in_, out_, "--to", "dcp", "-w", "0"}).status, 2);
  EXPECT_EQ(unishard({"verify", in_, "--memory-limit", "nonsense"}).status, 2);
  EXPECT_EQ(unishard({"inspect", in_, "-t", "nope"}).status, 3);
}

TEST_F(Command, ErrorsAreOneLineOfJsonOnRequest) {
  for (const auto& [words, code] : std::vector<std::pair<std::string, std::string>>{
           {"verify /nonexistent", "not found"},
           {"verfy x", "invalid argument"},
           {"verify x --dep", "invalid argument"},
           {"convert /nonexistent y --to dcp", "not found"}}) {
    const auto result =
        run({"sh", "-c",
             "UNISHARD_ERRORS=json " UNISHARD_BIN "/unishard " + words + " 2>&1 >/dev/null"});
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_EQ(json.at("error").at("code"), code) << result.out;
    EXPECT_EQ(std::ranges::count(result.out, '\n'), 1) << result.out;
  }
}

TEST_F(Command, ProgressIsLinesOfJsonOnRequest) {
  for (const std::string& words : std::vector<std::string>{
           "verify --deep " + in_, "convert --to native " + in_ + " " + out_}) {
    const auto command = "UNISHARD_PROGRESS=json " UNISHARD_BIN "/unishard " + words;
    const auto shown = run({"sh", "-c", command + " 2>&1 >/dev/null | grep progress"});
    std::istringstream lines(shown.out);
    std::string last;
    for (std::string line; std::getline(lines, line);) {
      last = line;
      const auto progress = nlohmann::json::parse(line).at("progress");
      EXPECT_LE(progress.at("done"), progress.at("total")) << shown.out;
    }
    ASSERT_NE(last, "") << words;
    const auto progress = nlohmann::json::parse(last).at("progress");
    EXPECT_EQ(progress.at("done"), progress.at("total")) << shown.out;
    std::filesystem::remove_all(out_);
    EXPECT_FALSE(holds(run({"sh", "-c", command + " -q 2>&1 >/dev/null"}).out, "progress"));
    std::filesystem::remove_all(out_);
  }
}

TEST_F(Command, InspectTakesTheFolderAndTheTag) {
  const auto by_folder = report_of({"inspect", in_});
  const auto by_tag = report_of({"inspect", tag_, "--layout"});
  EXPECT_EQ(by_folder.at("identity"), by_tag.at("identity"));
  EXPECT_EQ(by_folder.at("format"), "native");
  const std::string slash = tag_.string() + "/";
  const auto by_slash = report_of({"inspect", slash, "-t", "global_step7"});
  EXPECT_EQ(by_slash.at("tags"), by_folder.at("tags"));
  EXPECT_EQ(report_of({"verify", slash}).at("notes").size(), 0u);
  EXPECT_EQ(unishard({"diff", slash, in_ + "/"}).status, 0);
  EXPECT_TRUE(holds(unishard({"inspect", in_, "--stats"}).out, "wte.weight"));
  EXPECT_TRUE(holds(unishard({"inspect", in_, "--tags"}).out, "* global_step7") ||
              holds(unishard({"inspect", in_, "--tags"}).out, "*  global_step7"));
  EXPECT_TRUE(holds(unishard({"inspect", in_, "--layout"}).out, "|0"));
}

TEST_F(Command, InspectShowsARowPerParameterAndLayersThatAgreeAsOne) {
  const std::string rows = unishard({"inspect", in_}).out;
  const std::string layers = unishard({"inspect", in_, "--no-collapse"}).out;
  const std::string tensors = unishard({"inspect", in_, "--states"}).out;
  const auto lines = [](const std::string& text, std::string_view words) {
    std::size_t count = 0;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) count += holds(line, words) ? 1u : 0u;
    return count;
  };
  EXPECT_EQ(lines(rows, "h.{0..1}.attn.weight "), 1u) << rows;
  EXPECT_EQ(lines(rows, "attn.weight "), 1u) << rows;
  EXPECT_EQ(lines(layers, "h.0.attn.weight "), 1u) << layers;
  EXPECT_EQ(lines(layers, "h.1.attn.weight "), 1u) << layers;
  EXPECT_EQ(lines(tensors, "h.0.attn.weight "), 4u) << tensors;
  EXPECT_TRUE(holds(rows, "fp32 exp_avg exp_avg_sq, weights (derived)")) << rows;
  EXPECT_EQ(unishard({"inspect", in_, "--stats", "--filter", "h.0.*"}).out.find("h.{"),
            std::string::npos);
}

TEST_F(Command, InspectListsTagsWhereLatestNamesNone) {
  const test::TempDir temp;
  std::filesystem::copy(in_, temp.path() / "run", std::filesystem::copy_options::recursive);
  const std::string run = temp.path() / "run";
  write_file(temp.path() / "run/latest", "global_step9");
  const ProcessResult listed = unishard({"inspect", run, "--tags"});
  EXPECT_EQ(listed.status, 0) << listed.err;
  EXPECT_TRUE(holds(listed.out, "global_step7")) << listed.out;
  EXPECT_TRUE(holds(listed.err, "names \"global_step9\", and there is no checkpoint"))
      << listed.err;
  const auto json = [&](int status) { return report_of({"inspect", run, "--tags"}, status); };
  EXPECT_EQ(json(0).at("tags").at(0).at("tag"), "global_step7");
  EXPECT_EQ(json(0).at("latest"), "global_step9");
  EXPECT_TRUE(holds(json(0).at("latest_problem"), "no checkpoint of that name"));
  write_file(temp.path() / "run/latest", "../x");
  EXPECT_TRUE(json(0).at("latest").is_null());
  EXPECT_TRUE(holds(json(0).at("latest_problem"), "run/latest"));
  write_file(temp.path() / "run/latest", "global_step7");
  EXPECT_TRUE(json(0).at("latest_problem").is_null());
  EXPECT_EQ(json(0).at("tag"), "global_step7");
}

TEST_F(Command, InspectListsTagsOfOtherFormatsAsJson) {
  for (const char* step : {"step-1", "step-2"}) {
    const std::string folder = temp_.path() / "runs" / step;
    ASSERT_EQ(unishard({"convert", in_, folder, "--to", "dcp", "-q"}).status, 0);
  }
  const Json listed = report_of({"inspect", temp_.path() / "runs", "--tags"});
  EXPECT_EQ(listed["tags"].size(), 2u) << listed.dump();
  EXPECT_EQ(listed["tags"][0]["tag"], "step-1");
  EXPECT_EQ(listed["tags"][0]["format"], "dcp");
  EXPECT_EQ(listed["tags"][0]["step"], 1);
  EXPECT_FALSE(listed.contains("tensors"));
  std::filesystem::rename(temp_.path() / "runs/step-1", temp_.path() / "runs/checkpoint_3");
  const Json counted = report_of({"inspect", temp_.path() / "runs", "--tags"})["tags"][0];
  EXPECT_EQ(counted["tag"], "checkpoint_3");
  EXPECT_TRUE(counted["step"].is_null()) << "it is the third save of accelerate, at any step";
}

TEST_F(Command, AModelBecomesAFlatStateDict) {
  const std::string model = temp_.path() / "m.safetensors", file = temp_.path() / "m.pt";
  ASSERT_EQ(unishard({"zero_to_fp32", in_, model, "-q"}).status, 0);
  ASSERT_EQ(unishard({"convert", model, file, "--to", "torch", "-q"}).status, 0);
  const std::string bytes = read_text(posix_storage(), file, 1 << 24);
  EXPECT_TRUE(holds(bytes, "wte.weight"));
  EXPECT_FALSE(holds(bytes, "param_groups"));
  EXPECT_EQ(unishard({"diff", model, file}).status, 0);
}

TEST_F(Command, QuietKeepsWhatMakesTheWeightsDoubtful) {
  const std::string model = temp_.path() / "hub", file = temp_.path() / "m.safetensors";
  ASSERT_EQ(unishard({"zero_to_fp32", in_, model}).status, 0);
  write_file(std::filesystem::path(model) / "config.json", R"({"n_layer": 99})");
  const ProcessResult quiet = unishard({"zero_to_fp32", model, file, "-q"});
  EXPECT_EQ(quiet.status, 0);
  EXPECT_TRUE(holds(quiet.err, "99 layers")) << quiet.err;
  EXPECT_FALSE(holds(quiet.err, "MiB/s")) << "the summary";
}

TEST_F(Command, EstimateTakesTheTensorsWhereTheTypeOfAModelIsNotKnown) {
  const std::string model = temp_.path() / "hub";
  ASSERT_EQ(unishard({"zero_to_fp32", in_, model}).status, 0);
  const std::string before = unishard({"estimate", model}).out;
  write_file(std::filesystem::path(model) / "config.json", R"({"model_type": "mine"})");
  EXPECT_EQ(unishard({"estimate", model}).out, before);
  std::filesystem::remove(std::filesystem::path(model) / "model.safetensors");
  EXPECT_TRUE(holds(unishard({"estimate", model}).err, "\"mine\" is not known"));
}

TEST_F(Command, StrictAcceptsWhatTheOptionsLeaveOut) {
  EXPECT_EQ(
      unishard({"convert", in_, out_, "--to", "safetensors", "--weights-only", "--strict"}).status,
      0);
  test::write_example(temp_.path() / "fp32");
  const ProcessResult nothing = unishard({"convert", temp_.path() / "fp32", temp_.path() / "other",
                                          "--to", "native", "--dtype", "bf16", "--only", "wte*"});
  EXPECT_EQ(nothing.status, 2) << nothing.out;
  EXPECT_TRUE(holds(nothing.err, "no tensor has the state weights")) << nothing.err;
}

TEST_F(Command, PatternsOfOnlyThatNoNameHasAreNamed) {
  const ProcessResult result = unishard({"convert", in_, out_, "--to", "safetensors",
                                         "--weights-only", "--only", "wte*", "--only", "zzz*"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(holds(result.err, "--only zzz*: no tensor has such a name")) << result.err;
  EXPECT_FALSE(holds(result.err, "--only wte*:")) << result.err;
}

TEST_F(Command, InspectReadsNoPayload) {
  // The payload is destroyed; tables and manifest are as they were.
  const std::string before = unishard({"inspect", in_, "--stats"}).out;
  damage_payload(0);
  EXPECT_EQ(unishard({"verify", in_, "--deep", "-q"}).status, 1);
  EXPECT_EQ(unishard({"inspect", in_, "--stats"}).out, before);
}

TEST_F(Command, ZeroToFp32WritesAFileAndAFolder) {
  const std::string file = temp_.path() / "m.safetensors";
  EXPECT_EQ(unishard({"zero_to_fp32", in_, file}).status, 0);
  EXPECT_EQ(unishard({"diff", in_, file, "--states", "fp32,weights"}).status, 0);
  EXPECT_EQ(unishard({"diff", file, in_, "--states", "fp32"}).status, 0);
  EXPECT_EQ(unishard({"diff", in_, file}).status, 0) << "integer buffers are kept as they are";
  EXPECT_EQ(unishard({"zero_to_fp32", in_, file}).status, 3) << "is there";
  const ProcessResult sharded = unishard({"zero_to_fp32", tag_, out_, "--max_shard_size", "10KB",
                                          "--safe_serialization", "--exclude_frozen_parameters"});
  EXPECT_EQ(sharded.status, 0) << sharded.err;
  EXPECT_TRUE(
      std::filesystem::exists(std::filesystem::path(out_) / "model.safetensors.index.json"));
  const auto inspected = report_of({"inspect", out_});
  EXPECT_EQ(inspected.at("producer").at("metadata").at("format"), "pt");
  EXPECT_EQ(inspected.at("aliases").at("lm_head.weight"), "wte.weight");
}

TEST_F(Command, ZeroToFp32TakesDashesDtypeAndItsOwnName) {
  const std::string folder = temp_.path() / "model";
  const ProcessResult result = run({UNISHARD_BIN "/zero_to_fp32", in_, folder, "--max-shard-size",
                                    "1GB", "--dtype", "bf16", "--json"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out).at("output"), folder);
  const std::string bin = temp_.path() / "pytorch_model.bin";
  EXPECT_EQ(unishard({"zero_to_fp32", in_, bin}).status, 0);
  EXPECT_EQ(unishard({"diff", in_, bin, "--states", "fp32,weights"}).status, 0);
  for (const std::string name : {"m.h5", "m.hdf5"}) {
    const std::string h5 = temp_.path() / name;
    EXPECT_EQ(unishard({"zero_to_fp32", in_, h5}).status, 0);
    EXPECT_EQ(report_of({"inspect", h5}).at("format"), "hdf5");
    EXPECT_EQ(unishard({"diff", in_, h5}).status, 0);
    const ProcessResult verified = unishard({"verify", h5, "--deep"});
    EXPECT_EQ(verified.status, 0);
    EXPECT_NE(verified.out.find("could be read, and has no checksum"), std::string::npos)
        << verified.out;
  }
}

TEST_F(Command, ModelsGoToNumpyAndGgufAndBack) {
  for (const std::string format : {"npz", "gguf"}) {
    const std::string file = temp_.path() / ("m." + format);
    ASSERT_EQ(unishard({"convert", in_, file, "--to", format, "--weights-only", "--only",
                        "*.weight", "--only", "*.bias"})
                  .status,
              0);
    EXPECT_EQ(report_of({"inspect", file}).at("format"), format);
    const std::string verified = unishard({"verify", file, "--deep"}).out;
    EXPECT_EQ(holds(verified, "has no checksum"), format == "gguf") << verified;
    const std::string back = temp_.path() / (format + "-back");
    ASSERT_EQ(unishard({"convert", file, back, "--to", "native"}).status, 0);
    EXPECT_EQ(unishard({"diff", file, back}).status, 0);
    const ProcessResult limited = unishard({"verify", file, "--deep", "--memory-limit", "64MiB"});
    EXPECT_EQ(limited.status, 0) << limited.err;
  }
  const std::string whole = temp_.path() / "z.npz";
  ASSERT_EQ(unishard({"zero_to_fp32", in_, whole}).status, 0);
  EXPECT_EQ(unishard({"diff", in_, whole}).status, 0);
}

TEST_F(Command, FlagsThatTheOutputCannotFollowAreErrors) {
  const std::string file = temp_.path() / "m.safetensors", whole = temp_.path() / "whole.pt";
  ASSERT_EQ(unishard({"convert", in_, whole}).status, 0);
  const std::vector<std::pair<std::vector<std::string>, std::string>> calls = {
      {{"zero_to_fp32", in_, file, "--max-shard-size", "1GB"}, "model folders"},
      {{"convert", in_, file, "--to", "safetensors", "--max-shard-size", "1GB"}, "model folders"},
      {{"convert", in_, out_, "--to", "dcp", "--max-shard-size", "1GB"}, "model folders"},
      {{"convert", in_, out_, "--to", "dcp", "--out-tag", "x"}, "dcp has none"},
      {{"convert", in_, file, "--to", "safetensors", "--out-tag", "x"}, "safetensors has none"},
      {{"convert", in_, file, "--to", "safetensors", "-w", "3"},
       "--world-size is for formats with"},
      {{"convert", in_, file, "--to", "safetensors", "-s", "2"}, "--stage is for formats with"},
      {{"convert", in_, out_, "--to", "deepspeed", "--dcp-layout", "app"}, "--dcp-layout"},
      {{"reshard", in_, out_, "-w", "2", "--dcp-layout", "app"}, "--dcp-layout"},
      {{"reshard", whole, out_, "-w", "2"}, "--world-size is for formats with ranks"},
      {{"convert", in_, out_, "--to", "dcp", "--dcp-layout", "other"}, "--dcp-layout"},
  };
  for (const auto& [call, words] : calls) {
    const ProcessResult result = unishard(call);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_THAT(result.err, testing::HasSubstr(words));
    EXPECT_FALSE(std::filesystem::exists(out_));
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

TEST_F(Command, ADcpFolderGetsTheKeysThatAreAskedFor) {
  const std::string titan = temp_.path() / "titan", app = temp_.path() / "app";
  ASSERT_EQ(unishard({"convert", in_, titan, "--to", "dcp", "--dcp-layout", "titan"}).status, 0);
  EXPECT_THAT(read_file(titan + "/.metadata"), testing::HasSubstr("optimizer.param_groups."));
  ASSERT_EQ(unishard({"reshard", titan, app, "-w", "3", "--dcp-layout", "app"}).status, 0);
  EXPECT_THAT(read_file(app + "/.metadata"), testing::HasSubstr("app.optim.param_groups."));
  EXPECT_EQ(unishard({"diff", in_, app}).status, 0);
}

TEST_F(Command, ConvertGoesToDeepSpeedAndBack) {
  const Json report = report_of({"convert", in_, out_, "--to", "deepspeed", "-w", "4", "-s", "1"});
  EXPECT_EQ(report.at("world_size"), 4);
  EXPECT_TRUE(report.at("different").empty());
  EXPECT_EQ(unishard({"diff", in_, out_}).status, 0);
  EXPECT_EQ(unishard({"verify", out_, "--deep"}).status, 0);
  const std::string resharded = temp_.path() / "resharded";
  EXPECT_EQ(unishard({"reshard", out_, resharded, "-w", "2", "-s", "3"}).status, 0);
  EXPECT_EQ(unishard({"diff", out_, resharded}).status, 0);
  EXPECT_EQ(report_of({"inspect", resharded}).at("stage"), 3);
  EXPECT_EQ(unishard({"convert", in_, out_, "--to", "deepspeed"}).status, 3) << "is there";
}

TEST_F(Command, ConvertTellsWhatDoesNotArrive) {
  const std::vector<std::string> job = {"convert", in_, out_, "--to", "deepspeed-universal"};
  std::vector<std::string> dry = job, strict = job;
  dry.push_back("--dry-run");
  strict.push_back("--strict");
  EXPECT_TRUE(holds(unishard(dry).out, "buffers")) << "DeepSpeed does not restore them";
  EXPECT_EQ(unishard(strict).status, 6);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(out_) / "latest_universal"));
}

TEST_F(Command, ReshardKeepsTheIdentityAndOverwritesNothing) {
  const ProcessResult done = unishard({"reshard", in_, out_, "--world-size", "5", "--stage", "3"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_TRUE(holds(done.out, "equal: ")) << done.out;
  EXPECT_EQ(unishard({"verify", out_, "--deep"}).status, 0);
  const ProcessResult same = unishard({"diff", in_, out_});
  EXPECT_EQ(same.status, 0) << same.out;
  EXPECT_TRUE(holds(same.out, "without reading data")) << same.out;
  EXPECT_EQ(unishard({"reshard", in_, out_, "--world-size", "5"}).status, 3);
}

TEST_F(Command, CompressedCheckpointsAreWrittenReadAndNamed) {
  write_example(in_, {.step = 9, .tag = "larger", .scale = 20});
  const ProcessResult done = unishard({"reshard", in_, out_, "-w", "2", "--compress", "zstd:3"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_TRUE(holds(done.out, "equal: ")) << done.out;
  EXPECT_EQ(unishard({"verify", out_, "--deep"}).status, 0);
  EXPECT_TRUE(holds(unishard({"inspect", out_}).out, "compressed   zstd, "));
  EXPECT_EQ(report_of({"inspect", out_}).at("compression"), "zstd");
  const std::string plain = temp_.path() / "plain";
  EXPECT_EQ(unishard({"convert", out_, plain, "--to", "native", "--compress", "none"}).status, 0);
  EXPECT_EQ(unishard({"diff", in_, plain}).status, 0);
  EXPECT_TRUE(report_of({"inspect", plain}).at("compression").is_null());
}

TEST_F(Command, SharedCheckpointsAreShownCheckedAndConverted) {
  const std::filesystem::path next = write_example(
      in_, {.step = 8, .tag = "next", .bf16 = true, .base = tag_, .changed = "ln_f.weight"});
  EXPECT_EQ(unishard({"prune", in_, "--keep-last", "1"}).status, 0);
  EXPECT_FALSE(std::filesystem::exists(tag_));
  EXPECT_EQ(unishard({"verify", in_, "--deep"}).status, 0);
  const std::string text = unishard({"inspect", in_}).out;
  EXPECT_TRUE(holds(text, "shared       ")) << text;
  EXPECT_TRUE(holds(text, "with earlier saves (3 files)")) << text;
  EXPECT_FALSE(holds(text, "compressed"));
  const auto shards = report_of({"inspect", in_}).at("shards");
  EXPECT_GT(shards.at(0).at("shared_bytes"), 0);
  const std::string base = shards.at(0).at("shared_with").at(0);
  EXPECT_TRUE(std::filesystem::exists(next / base));
  EXPECT_EQ(unishard({"reshard", in_, out_, "-w", "2"}).status, 0);
  EXPECT_EQ(unishard({"diff", in_, out_}).status, 0);

  std::filesystem::resize_file(next / base, 5000);
  const ProcessResult damaged = unishard({"verify", in_});
  EXPECT_EQ(damaged.status, 1) << damaged.out;
  EXPECT_TRUE(holds(damaged.out, base)) << damaged.out;
}

TEST_F(Command, CompressionIsRefusedWhereItMeansNothing) {
  EXPECT_EQ(unishard({"reshard", in_, out_, "-w", "2", "--compress", "gzip"}).status, 2);
  EXPECT_EQ(unishard({"convert", in_, out_, "--to", "deepspeed", "--compress", "zstd"}).status, 2);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(Command, ReshardDryRunWritesNothing) {
  const ProcessResult plan = unishard({"reshard", in_, out_, "-w", "2", "--dry-run"});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_TRUE(holds(plan.out, "shard-00001-of-00002.h5") && holds(plan.out, "disk:")) << plan.out;
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(Command, ReshardOfADamagedCheckpointLeavesNothing) {
  damage_payload(1);
  const ProcessResult result = unishard({"reshard", in_, out_, "-w", "2"});
  EXPECT_EQ(result.status, 4) << result.err;
  EXPECT_TRUE(holds(result.err, "shard-00001-of-00003.h5")) << result.err;
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(out_) / "latest"));
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(Command, AnInterruptedReshardLeavesNothing) {
  write_example(in_, {.step = 9, .tag = "big", .scale = 800});
  Process process({kProgram, "reshard", in_, out_, "-w", "4"});
  while (process.running() && !std::filesystem::exists(out_)) {
  }
  process.signal(SIGTERM);
  const ProcessResult result = process.wait();
  if (result.status == 0) GTEST_SKIP() << "it was done before the signal came";
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.err;
  EXPECT_TRUE(holds(result.err, "stopped on request")) << result.err;
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(Command, OneSignalStopsTheWritingOfManyEmptyShards) {
  Process process({kProgram, "reshard", in_, out_, "-w", "20000"});
  const auto has_begun_to_seal = [&] {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             out_, std::filesystem::directory_options::skip_permission_denied)) {
      if (entry.path().filename().string() > "shard-01000") return true;
    }
    return false;
  };
  while (process.running() && !(std::filesystem::exists(out_) && has_begun_to_seal())) {
  }
  process.signal(SIGTERM);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.err;
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(Command, AnEmptyPathIsAWrongArgument) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"inspect", ""},
                                                {"convert", in_, "", "--to", "native"},
                                                {"convert", "", out_, "--to", "native"},
                                                {"diff", in_, ""}}) {
    const ProcessResult result = unishard(words);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_TRUE(holds(result.err, "is an empty text")) << result.err;
  }
}

TEST_F(Command, AnEmptyValueOfAnOptionIsAWrongArgument) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"reshard", in_, out_, "-w", ""},
        {"reshard", in_, out_, "-w", "2", "-s", ""},
        {"convert", in_, out_, "--to", "native", "--stage="},
        {"inspect", in_, "-t", ""},
        {"diff", in_, in_, "--states", ""}}) {
    const ProcessResult result = unishard(words);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
  EXPECT_TRUE(holds(unishard({"reshard", in_, out_, "-w", "2", "-s", ""}).err,
                    "unishard reshard: error: the value of --stage is an empty text"));
}

TEST_F(Command, AFileWithoutTensorsHasNone) {
  const std::string file = temp_.path() / "none.safetensors";
  std::ofstream(file, std::ios::binary) << std::string_view("\x02\0\0\0\0\0\0\0{}", 10);
  EXPECT_TRUE(unishard({"inspect", file}).out.ends_with("\n\nno tensors\n"));
  EXPECT_TRUE(unishard({"inspect", in_, "--filter", "q*"})
                  .out.ends_with("\n\nno tensor matches the filter\n"));
}

TEST_F(Command, AFilterFindsTheSecondNameOfATiedTensor) {
  const std::string shown = unishard({"inspect", in_, "--filter", "lm_head.*"}).out;
  EXPECT_TRUE(holds(shown, "\nwte.weight ")) << shown;
  EXPECT_FALSE(holds(shown, "\nh.")) << shown;
}

TEST_F(Command, DiffFindsAnotherSeed) {
  write_example(out_, {.seed = 2, .bf16 = true});
  EXPECT_FALSE(report_of({"diff", in_, out_}, 1).at("differences").empty());
  EXPECT_EQ(unishard({"diff", in_, out_, "--tolerance", "1e30"}).status, 0);
}

TEST_F(Command, DiffCountsTensorsThatOneSideAloneHas) {
  const std::string model = out_ + ".safetensors";
  ASSERT_EQ(unishard({"zero_to_fp32", in_, model}).status, 0);
  const ProcessResult made = unishard(
      {"convert", model, out_ + "2.safetensors", "--to", "safetensors", "--rename", "^=other."});
  ASSERT_EQ(made.status, 0) << made.err;
  const ProcessResult result = unishard({"diff", model, out_ + "2.safetensors"});
  std::size_t only_a = 0;
  for (std::size_t at = 0; (at = result.out.find(": only in A\n", at)) != std::string::npos; ++at)
    ++only_a;
  EXPECT_GT(only_a, 5u);
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(
      holds(result.out, fmt::format("different: {0} of {0} tensors ({0} of {0} parameters)\n"
                                    "  weights: {1} only in A, {1} only in B\n",
                                    2 * only_a, only_a)))
      << result.out;
}

TEST_F(Command, DiffWidensTypesOnRequest) {
  const std::string wide = temp_.path() / "wide.safetensors",
                    masters = temp_.path() / "masters.safetensors",
                    narrow = temp_.path() / "narrow.safetensors";
  ASSERT_EQ(unishard({"zero_to_fp32", in_, narrow, "--dtype", "bf16"}).status, 0);
  ASSERT_EQ(unishard({"zero_to_fp32", narrow, wide}).status, 0);
  ASSERT_EQ(unishard({"zero_to_fp32", in_, masters}).status, 0);
  const ProcessResult strict = unishard({"diff", wide, narrow});
  EXPECT_EQ(strict.status, 1);
  EXPECT_TRUE(holds(strict.out, "dtype float32 and bfloat16\n")) << strict.out;
  EXPECT_TRUE(holds(strict.out, "hint: --upcast compares the values of ")) << strict.out;
  const ProcessResult same = unishard({"diff", narrow, wide, "--upcast"});
  EXPECT_EQ(same.status, 0) << same.out;
  EXPECT_TRUE(holds(same.out, " tensors of different types were compared by their values\n"));
  // The fp32 masters are not the rounded weights.
  const ProcessResult rounded = unishard({"diff", masters, narrow, "--upcast"});
  EXPECT_EQ(rounded.status, 1);
  EXPECT_FALSE(holds(rounded.out, "dtype ")) << rounded.out;
  EXPECT_EQ(unishard({"diff", masters, narrow, "--upcast", "--tolerance", "0.1"}).status, 0);
}

TEST_F(Command, DiffPairsTheFp32StateWithWeightsOfAnotherType) {
  write_example(out_, {});
  const std::string narrow = temp_.path() / "narrow";
  ASSERT_EQ(unishard({"convert", out_, narrow, "--to", "dcp", "--weights-only", "--dtype", "bf16"})
                .status,
            0);
  const std::string text = unishard({"diff", out_, narrow}).out;
  EXPECT_TRUE(holds(text, "wte.weight [fp32]: dtype float32 and bfloat16\n")) << text;
  EXPECT_FALSE(holds(text, "only in B")) << text;
}

TEST_F(Command, DifferencesHaveColoursOnATerminalOnly) {
  constexpr std::string_view kRed = "\x1b[31m";
  write_example(out_, {.seed = 2, .bf16 = true});
  const std::vector<std::string> words = {"diff", in_, out_};
  const auto on_terminal = [&](const std::string& environment, const std::string& more = "") {
    return run({"script", "-qec",
                fmt::format("TERM=xterm {} {} diff {} {} {}", environment, kProgram, in_, out_,
                            more),
                "/dev/null"})
        .out;
  };
  EXPECT_FALSE(holds(unishard(words).out, "\x1b"));
  EXPECT_FALSE(holds(unishard({"diff", in_, out_, "--json", "--color", "always"}).out, "\x1b"));
  const std::string coloured =
      unishard({"diff", in_, out_, "--color", "always"}, {{"NO_COLOR", "1"}}).out;
  EXPECT_TRUE(holds(coloured, fmt::format("{}different\x1b[0m: ", kRed))) << coloured;
  EXPECT_EQ(unishard({"diff", in_, out_, "--color", "red"}).status, 2);
  if (run({"sh", "-c", "command -v script"}).status != 0) GTEST_SKIP() << "script is not installed";
  EXPECT_TRUE(holds(on_terminal("NO_COLOR="), kRed));
  EXPECT_FALSE(holds(on_terminal("NO_COLOR=0"), kRed));
  EXPECT_FALSE(holds(on_terminal("TERM=dumb"), kRed));
  EXPECT_FALSE(holds(on_terminal("NO_COLOR=", "--color never"), kRed));
}

TEST_F(Command, FindingsHaveColours) {
  damage_payload(0);
  EXPECT_TRUE(holds(unishard({"verify", in_, "--deep", "--color=always"}).out,
                    "\x1b[31mDAMAGE chunk-damaged\x1b[0m: "));
}

TEST_F(Command, PruneKeepsTheNewest) {
  for (const int step : {8, 9, 10})
    write_example(in_, {.step = step, .tag = "global_step" + std::to_string(step)});
  EXPECT_TRUE(holds(unishard({"prune", in_, "--keep-last", "2", "--dry-run"}).out,
                    "would remove global_step7"));
  EXPECT_TRUE(std::filesystem::exists(tag_));
  const auto removed = report_of({"prune", in_, "--keep-last", "2"}).at("removed");
  EXPECT_EQ(removed, (std::vector<std::string>{"global_step7", "global_step8"}));
  EXPECT_FALSE(std::filesystem::exists(tag_));
  EXPECT_EQ(unishard({"verify", in_, "--all"}).status, 0);
}

TEST(Links, TheProgramNeedsNoFramework) {
  const ProcessResult result = run({"ldd", kProgram});
  if (result.status != 0) GTEST_SKIP() << "no ldd here: " << result.err;
  // Names, not addresses: those may hold "c10".
  for (const char* word : {"libtorch", "libc10", "libnccl", "libcuda", "libgloo", "libmpi"})
    EXPECT_FALSE(holds(result.out, word)) << result.out;
}

}  // namespace
}  // namespace unishard::test
