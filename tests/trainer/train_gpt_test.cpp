// train_gpt as its users run it: real processes, real signals, real crashes.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/commit.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "ranks.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <thread>

namespace unishard::test {
namespace {

using namespace std::chrono_literals;

/// A folder with a configuration and a text, and command lines for them.
class TrainGpt : public testing::Test {
 protected:
  TrainGpt() {
    std::string text;
    for (int line = 0; line < 400; ++line)
      text += fmt::format("line {} of a text that is {} long\n", line, line * line);
    write_file(path("text"), text);
    configure("");
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  void configure(const std::string& more) const {
    const std::string fixed =
        R"({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
      "canonical_order": true)";
    write_file(path("ds.json"), fixed + more + "}");
  }
  std::vector<std::string> of_model(const std::string& model,
                                    const std::vector<std::string>& more) const {
    std::vector<std::string> argv{UNISHARD_BIN "/train_gpt",
                                  "--config",
                                  path("ds.json"),
                                  "--data",
                                  path("text"),
                                  "--model",
                                  model};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    auto argv = of_model("nano", {"--layers", "1", "--width", "16", "--dropout", "0.1"});
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  /// Starts one of two ranks, which may get another command than the other one.
  static Process rank_of_two(int number, std::vector<std::string> argv, int port) {
    return Process(std::move(argv), {{"RANK", std::to_string(number)},
                                     {"WORLD_SIZE", "2"},
                                     {"MASTER_ADDR", "127.0.0.1"},
                                     {"MASTER_PORT", std::to_string(port)}});
  }
  /// The same command for the program that kills one of its ranks.
  static std::vector<std::string> killed(std::vector<std::string> argv) {
    argv[0] = UNISHARD_TESTS_BIN "/killed_train_gpt";
    return argv;
  }
  /// Makes that program die in a save (from 1), just before a step (CommitStep).
  static Environment kill_at(int save, int step, int rank) {
    return {{"KILL_AT", fmt::format("{} {} {}", save, step, rank)}};
  }
  /// Step to the hexadecimal text of its loss; a step that was done twice must have had the same
  /// loss.
  std::map<int, std::string> losses(const std::string& log) const {
    std::map<int, std::string> found;
    std::ifstream file(path(log));
    for (std::string line; std::getline(file, line);) {
      const Json json = parse_json(line, log);
      const int step = json.at("step").get<int>();
      const auto [at, fresh] = found.emplace(step, json.at("loss").get<std::string>());
      EXPECT_GT(json.at("grad_norm").get<double>(), 0) << line;
      EXPECT_GT(json.at("lr").get<double>(), 0) << line;
      EXPECT_GT(json.at("tokens_per_s").get<double>(), 0) << line;
      EXPECT_TRUE(fresh || at->second == json.at("loss").get<std::string>())
          << "step " << step << " was repeated with another loss";
    }
    return found;
  }
  std::string identity_of(const std::string& folder) const {
    return test::identity_of(path(folder));
  }
  TempDir folder_;
};

TEST_F(TrainGpt, LossesFallAndAreTheSameForEveryWorldSizeAndStage) {
  run_ranks(
      command({"--steps", "6", "--stage", "0", "--losses", path("a"), "--save-dir", path("ca")}),
      1);
  run_ranks(
      command({"--steps", "6", "--stage", "3", "--losses", path("b"), "--save-dir", path("cb")}),
      3);
  EXPECT_EQ(losses("a").size(), 6u);
  EXPECT_EQ(losses("a"), losses("b"));
  EXPECT_EQ(identity_of("ca"), identity_of("cb"));
}

TEST_F(TrainGpt, ProfilesStepsWithoutAChangeOfBits) {
  run_ranks(command({"--steps", "4", "--losses", path("plain")}), 2);
  const auto out = run_ranks(command({"--steps", "4", "--losses", path("profiled"), "--profile",
                                      path("profile"), "--profile-summary"}),
                             2)[0]
                       .out;
  EXPECT_EQ(losses("plain"), losses("profiled"));
  EXPECT_THAT(out, testing::HasSubstr("profile of 2 steps, from step 2 of this run, rank 0"));
  EXPECT_THAT(out, testing::ContainsRegex("ms +[0-9.]+ x  aten::addmm"));
  std::map<std::pair<int, std::string>, int> seen;  // by rank and name
  const Json profile = read_json(path("profile"));
  for (const Json& event : profile.at("traceEvents"))
    ++seen[{event.at("pid").get<int>(), event.at("name").get<std::string>()}];
  for (const int rank : {0, 1}) {
    EXPECT_EQ((seen[{rank, "update unit h.0"}]), 2) << "what the streams did in two steps";
    EXPECT_EQ((seen[{rank, "aten::embedding"}]) % 2, 0);
    EXPECT_GT((seen[{rank, "aten::embedding"}]), 0);
    EXPECT_GT((seen[{rank, "AddmmBackward0"}]), 0) << "backward passes";
  }
}

TEST_F(TrainGpt, RecomputesBlocksWithoutAChangeOfBitsAndTracesItsStreams) {
  run_ranks(command({"--steps", "3", "--stage", "3", "--losses", path("plain")}), 2);
  configure(R"(, "activation_checkpointing": {"profile": true})");
  const auto out = run_ranks(command({"--steps", "3", "--stage", "3", "--losses", path("again"),
                                      "--trace", path("trace.json")}),
                             2)[0]
                       .out;
  EXPECT_EQ(losses("plain"), losses("again"));
  EXPECT_THAT(out, testing::HasSubstr("recomputed 9 blocks"));
  std::set<std::pair<int, std::string>> seen;  // rank and first word
  using Times = std::vector<std::pair<double, double>>;
  std::map<std::string, std::array<Times, 2>> gathers;  // by name and rank
  const Json trace = read_json(path("trace.json"));
  for (const Json& event : trace.at("traceEvents")) {
    const auto name = event.at("name").get<std::string>();
    const int rank = event.at("pid").get<int>();
    seen.emplace(rank, name.substr(0, name.find(' ')));
    const double begin = event.at("ts").get<double>();
    if (name.starts_with("gather "))
      gathers[name]
          .at(static_cast<std::size_t>(rank))
          .emplace_back(begin, begin + event.at("dur").get<double>());
  }
  EXPECT_FALSE(gathers.empty());
  for (const auto& [name, of_rank] : gathers) {
    ASSERT_EQ(of_rank[0].size(), of_rank[1].size()) << name;
    for (std::size_t i = 0; i < of_rank[0].size(); ++i) {  // a millisecond for reading the clocks
      EXPECT_LT(of_rank[0][i].first, of_rank[1][i].second + 1000) << name;
      EXPECT_LT(of_rank[1][i].first, of_rank[0][i].second + 1000) << name;
    }
  }
  for (const int rank : {0, 1}) {
    for (const char* work : {"forward", "backward", "gather", "reduce", "update"})
      EXPECT_TRUE(seen.contains({rank, work})) << rank << " " << work;
  }
}

TEST_F(TrainGpt, TrainsInFp16AndCountsTheStepsThatOverflow) {
  configure(R"(, "fp16": {"enabled": true, "initial_scale_power": 40, "hysteresis": 1})");
  const auto out = run_ranks(command({"--steps", "40", "--stage", "2", "--losses", path("a"),
                                      "--save-dir", path("run")}),
                             2)[0]
                       .out;
  EXPECT_THAT(out, testing::HasSubstr("skipped: not finite"));
  EXPECT_THAT(out,
              testing::HasSubstr("steps changed nothing: their loss or gradient was not finite"));
  const auto more = run_ranks(command({"--steps", "42", "--stage", "3", "--save-dir", path("run"),
                                       "--resume", "--losses", path("b")}),
                              1)[0]
                        .out;
  EXPECT_THAT(more, testing::HasSubstr("resumed"));
  std::ifstream log(path("b"));
  for (std::string line; std::getline(log, line);)
    EXPECT_LT(parse_json(line, "b").at("loss_scale").get<double>(), std::ldexp(1.0, 30)) << line;
}

/// llm.c's file of 32-bit tokens below 300.
std::string token_file() {
  std::string bytes;
  const auto put = [&](std::uint32_t value) {
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i));
  };
  put(20240801);
  put(7);
  put(2000);
  bytes.resize(1024);
  for (std::uint32_t i = 0; i < 2000; ++i) put((i * i + i / 7) % 300);
  return bytes;
}

TEST_F(TrainGpt, AHuggingFaceFolderOfALlamaTrainsAndBecomesOneAgain) {
  std::filesystem::create_directories(path("m"));
  write_file(path("m/config.json"),
             R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 300,
      "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 4096,
      "rope_theta": 1000000, "tie_word_embeddings": true, "eos_token_id": 299})");
  write_file(path("train.bin"), token_file());
  const auto with = [&](const std::string& model, const std::string& log,
                        const std::vector<std::string>& more) {
    std::vector<std::string> all{"--data", path("train.bin"), "--context",
                                 "32",     "--losses",        path(log)};
    all.insert(all.end(), more.begin(), more.end());
    return of_model(path(model), all);
  };
  const auto first =
      run_ranks(with("m", "a", {"--steps", "4", "--stage", "3", "--save", path("run")}), 2);
  EXPECT_THAT(first[0].out, testing::HasSubstr("samples of 32 tokens (uint32)"));
  run_ranks(with("m", "b", {"--steps", "4", "--stage", "0"}), 1);
  EXPECT_EQ(losses("a"), losses("b"));

  const auto exported = unishard({"zero_to_fp32", path("run"), path("export")});
  ASSERT_EQ(exported.status, 0) << exported.err;
  const Json config = parse_json(read_file(path("export/config.json")), "config.json");
  EXPECT_EQ(config.at("model_type"), "qwen3");
  EXPECT_EQ(config.at("eos_token_id"), 299);
  EXPECT_EQ(config.at("max_position_embeddings"), 4096);
  const auto second =
      run_ranks(with("export", "c", {"--steps", "1", "--resume", path("export") + "/"}), 2);
  EXPECT_THAT(second[0].out, testing::HasSubstr("holds weights only"));
  EXPECT_EQ(losses("c").size(), 1u);
}

TEST_F(TrainGpt, WhatItCannotTrainIsRefusedByName) {
  const auto refusal = [&](const std::vector<std::string>& argv) {
    const auto result = run(argv);
    EXPECT_EQ(result.status, 2) << result.out << result.err;
    return result.err;
  };
  std::filesystem::create_directories(path("m"));
  write_file(path("m/config.json"), R"({"model_type": "gemma2"})");
  EXPECT_THAT(refusal(of_model(path("m"), {})), testing::HasSubstr("model_type is \"gemma2\""));
  EXPECT_THAT(refusal(of_model("llama-huge", {})), testing::HasSubstr("llama-tiny"));
  EXPECT_THAT(refusal(of_model("llama-nano", {"--heads", "3"})),
              testing::HasSubstr("a width of 32 is not a multiple of 3 attention heads"));
  EXPECT_THAT(refusal(of_model("llama-nano", {"--context", "65"})),
              testing::HasSubstr("longer than the model's context of 64"));
  write_file(path("train.bin"), token_file().substr(0, 4000));
  EXPECT_THAT(refusal(of_model("llama-nano", {"--data", path("train.bin")})),
              testing::HasSubstr("a header for 2000 tokens"));
}

TEST_F(TrainGpt, AsynchronousSavesAreTheSynchronousOnes) {
  const auto with = [&](const char* mode, const char* stage) {
    return command({"--steps", "5", "--save-interval", "2", "--stage", stage, "--losses",
                    path(mode + std::string("log") + stage), "--save-dir",
                    path(mode + std::string(stage)), mode});
  };
  for (const char* stage : {"0", "1", "2", "3"}) {
    SCOPED_TRACE(stage);
    const auto waits = run_ranks(with("--no-async-save", stage), 2)[0].out;
    const auto goes_on = run_ranks(with("--async-save", stage), 2)[0].out;
    for (const char* tag : {"2", "4", "5"}) {
      const std::string name = std::string("global_step") + tag;
      EXPECT_NE(waits.find("saved " + name + ":"), std::string::npos) << waits;
      EXPECT_NE(goes_on.find("saved " + name + ":"), std::string::npos) << goes_on;
      const std::string in = std::string(stage) + "/" + name;
      EXPECT_EQ(identity_of("--async-save" + in), identity_of("--no-async-save" + in));
    }
    EXPECT_EQ(losses(std::string("--async-savelog") + stage),
              losses(std::string("--no-async-savelog") + stage));
  }
}

TEST_F(TrainGpt, GoesOnFromCompressedSaves) {
  const auto with = [&](const char* steps, const char* folder, const char* mode) {
    return command({"--steps", steps, "--save-interval", "2", "--stage", "2", "--save-dir",
                    path(folder), "--compress", mode, "--resume"});
  };
  run_ranks(with("5", "plain", "none"), 2);
  run_ranks(with("2", "small", "zstd"), 2);
  run_ranks(with("5", "small", "auto"), 3);
  EXPECT_EQ(identity_of("small"), identity_of("plain"));
}

TEST_F(TrainGpt, ResumeStartsFreshAndThenGoesOn) {
  run_ranks(command({"--steps", "5", "--losses", path("whole"), "--save-dir", path("cw")}), 1);
  const std::vector<std::string> resume{"--save-dir", path("c"), "--losses", path("parts"),
                                        "--resume"};
  auto with = [&](const char* steps, const char* stage) {
    auto argv = resume;
    argv.insert(argv.end(), {"--steps", steps, "--stage", stage});
    return command(argv);
  };
  EXPECT_NE(run_ranks(with("2", "1"), 2)[0].out.find("starting fresh"), std::string::npos);
  EXPECT_NE(run_ranks(with("4", "3"), 3)[0].out.find(
                "resumed global_step2 at step 2 (saved by world size 2, stage 1)"),
            std::string::npos);
  run_ranks(with("5", "2"), 1);
  EXPECT_EQ(losses("parts"), losses("whole"));
  EXPECT_EQ(identity_of("c"), identity_of("cw"));
}

TEST_F(TrainGpt, ResumingWithAnotherModelOrOtherDataIsNoted) {
  run_ranks(command({"--steps", "1", "--heads", "2", "--save", path("c")}), 1);
  const std::vector<std::string> further{"--steps", "2", "--resume", "--save", path("c")};
  auto same = command(further), other = command(further);
  same.insert(same.end(), {"--heads", "2", "--dropout", "0"});
  EXPECT_THAT(run_ranks(same, 1)[0].out, testing::Not(testing::HasSubstr("note: n_head")));
  std::filesystem::remove_all(path("c/global_step2"));
  write_file(path("c/latest"), "global_step1");
  write_file(path("text"), std::string(3000, 'b'));
  other.insert(other.end(), {"--heads", "4"});
  const std::string out = run_ranks(other, 1)[0].out;
  EXPECT_THAT(out, testing::HasSubstr("note: the model's n_head was 2, this run's 4"));
  EXPECT_THAT(out, testing::HasSubstr("note: --data is another file"));
}

TEST_F(TrainGpt, ATokenBeyondTheVocabularyIsFoundBeforeTheFirstStep) {
  std::string tokens(4000, '\0');
  tokens[3999] = '\x40';
  write_file(path("tokens.bin"), tokens);
  auto argv = command({"--steps", "1000", "--tokens", "uint16", "--vocab-size", "300"});
  *std::ranges::find(argv, path("text")) = path("tokens.bin");
  const auto result = Process(argv).wait();
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, testing::HasSubstr("token 16384 at byte 3998"));
  EXPECT_THAT(result.out, testing::Not(testing::HasSubstr("step 1")));
}

TEST_F(TrainGpt, ResumesFromACheckpointOfEveryFormat) {
  run_ranks(command({"--steps", "4", "--losses", path("whole"), "--save-dir", path("run"),
                     "--save-interval", "2"}),
            2);
  std::map<int, std::string> end = losses("whole");
  std::erase_if(end, [](const auto& step) { return step.first <= 2; });
  for (const std::string format : {"deepspeed", "dcp", "torch"}) {
    SCOPED_TRACE(format);
    const std::string copy = path(format) + (format == "torch" ? ".pt" : "");
    const test::ProcessResult converted =
        unishard({"convert", path("run"), copy, "--to", format, "-t", "global_step2"});
    ASSERT_EQ(converted.status, 0) << converted.err;
    run_ranks(command({"--steps", "4", "--stage", "3", "--losses", path(format + ".log"),
                       "--resume", copy}),
              3);
    EXPECT_EQ(losses(format + ".log"), end);
  }
}

TEST_F(TrainGpt, ADeadRankStopsTheOthersWithinSeconds) {
  Ranks ranks(command({"--steps", "1000000", "--stage", "3"}), 3);
  while (ranks[0].output_so_far().find("step ") == std::string::npos && ranks[0].running()) {
    std::this_thread::sleep_for(20ms);
  }
  ranks[1].signal(SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  const auto results = ranks.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 20s);
  for (const std::size_t survivor : {0u, 2u}) {
    EXPECT_NE(results[survivor].status, 0);
    EXPECT_LT(results[survivor].status, 128) << results[survivor].err;
    EXPECT_NE(results[survivor].err.find(fmt::format("train_gpt: rank {}: error: ", survivor)),
              std::string::npos)
        << results[survivor].err;
  }
}

/// Rank 0 keeps the list of those that failed.
TEST_F(TrainGpt, ADeadFirstRankIsNamed) {
  Ranks ranks(command({"--steps", "1000000", "--stage", "3"}), 2);
  while (ranks[0].output_so_far().find("step ") == std::string::npos && ranks[0].running())
    std::this_thread::sleep_for(20ms);
  ranks[0].signal(SIGKILL);
  const auto results = ranks.wait();
  EXPECT_EQ(results[1].status, 3);
  EXPECT_THAT(results[1].err, testing::HasSubstr("rank 0, which keeps the list of the ranks, has "
                                                 "ended or does not answer"));
}

TEST_F(TrainGpt, ASilentRankIsFoundByTheTimeout) {
  Ranks ranks(command({"--steps", "1000000", "--stage", "3", "--timeout", "3"}), 2);
  while (ranks[0].output_so_far().find("step ") == std::string::npos && ranks[0].running()) {
    std::this_thread::sleep_for(20ms);
  }
  ranks[1].signal(SIGSTOP);
  const auto stopped = std::chrono::steady_clock::now();
  const auto survivor = ranks[0].wait();
  EXPECT_LT(std::chrono::steady_clock::now() - stopped, 20s);
  EXPECT_THAT(survivor.err, testing::HasSubstr("train_gpt: rank 0: error: "));
  EXPECT_THAT(survivor.err, testing::HasSubstr("rank 1 did not answer"));
  EXPECT_THAT(survivor.err, testing::ContainsRegex("(unit h.0|root unit|step [0-9]+|signals): "));
  EXPECT_EQ(survivor.status, 3);
  ranks[1].signal(SIGKILL);
  ranks[1].wait();
}

TEST_F(TrainGpt, ASecondSignalEndsARunThatHangs) {
  Ranks ranks(command({"--steps", "1000000", "--stage", "3"}), 2);
  while (ranks[0].output_so_far().find("step ") == std::string::npos && ranks[0].running())
    std::this_thread::sleep_for(20ms);
  ranks[1].signal(SIGSTOP);
  std::this_thread::sleep_for(100ms);
  ranks[0].signal(SIGINT);
  std::this_thread::sleep_for(500ms);  // a launcher that sends the terminal's signal on
  ranks[0].signal(SIGINT);
  std::this_thread::sleep_for(500ms);
  EXPECT_TRUE(ranks[0].running());
  std::this_thread::sleep_for(3s);
  ranks[0].signal(SIGINT);
  EXPECT_EQ(ranks[0].wait().status, 128 + SIGINT);
  ranks[1].signal(SIGKILL);
  ranks[1].wait();
}

/// As of a system that stops a job and repeats its signal while the job saves.
TEST_F(TrainGpt, ARepeatedTerminationLeavesTheTimeToSave) {
  Ranks ranks(command({"--steps", "1000000", "--stage", "3", "--save-dir", path("c")}), 2);
  while (ranks[0].output_so_far().find("step ") == std::string::npos && ranks[0].running())
    std::this_thread::sleep_for(20ms);
  ranks[1].signal(SIGSTOP);
  ranks[0].signal(SIGTERM);
  std::this_thread::sleep_for(3500ms);
  ranks[0].signal(SIGTERM);
  ranks[0].signal(SIGHUP);
  std::this_thread::sleep_for(200ms);
  EXPECT_TRUE(ranks[0].running());
  ranks[1].signal(SIGCONT);
  for (const auto& result : ranks.wait()) EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(list_tags(posix_storage(), path("c")).size(), 1u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Gradients in files wait while activations become fewer, so the plan of them is an upper bound.
TEST_F(TrainGpt, AProcessHasThePlannedMemoryAtItsPeak) {
  const std::string files = fmt::format(
      R"("offload_optimizer": {{"device": "nvme", "nvme_path": "{}"}})", folder_.path().string());
  const std::string stage0 = R"("stage": 0)", stage3 = R"("stage": 3)";
  for (const auto& [zero, share] : std::vector<std::pair<std::string, double>>{
           {stage0, 0.1}, {stage3, 0.1}, {R"("stage": 2, )" + files, 0.2}}) {
    configure(R"(, "bf16": {"enabled": true}, "zero_optimization": {)" + zero + "}");
    const ProcessResult result = run(of_model(
        "nano", {"--steps", "1", "--layers", "8", "--width", "512", "--heads", "8", "--context",
                 "256", "--batch", "2", "--micro-batch", "2", "--report-memory"}));
    ASSERT_EQ(result.status, 0) << result.err;
    const auto number_after = [&](const std::string& words) {
      const auto found = result.out.rfind(words);
      EXPECT_NE(found, std::string::npos) << result.out;
      return std::strtod(result.out.c_str() + found + words.size(), nullptr);
    };
    const double peak = number_after("(peak "), planned = number_after("MB, process ");
    EXPECT_NEAR(planned, peak, share * peak) << zero << "\n" << result.out;
  }
}

/// The memory of OpenBLAS is there before that of the model, for it asks for ever.
TEST_F(TrainGpt, TooLittleMemoryIsAnErrorThatSaysWhatWouldNeedLess) {
  std::string words = "ulimit -s 1024; ulimit -d 500000; exec";
  for (const std::string& word : of_model("nano", {"--steps", "1", "--layers", "24", "--width",
                                                   "768", "--heads", "6", "--threads", "1"}))
    words += " '" + word + "'";
  const ProcessResult result = run({"/bin/sh", "-c", words});
  EXPECT_EQ(result.status, 3) << result.err;
  EXPECT_THAT(result.err, testing::HasSubstr("stage 3 with offload_optimizer to nvme would need"));
}
#endif

TEST_F(TrainGpt, ARunThatDivergesEndsAndKeepsItsCheckpoints) {
  const auto with = [&](const char* steps) {
    return command({"--steps", steps, "--stage", "2", "--save-dir", path("c"), "--save-interval",
                    "1", "--keep-last", "2", "--resume"});
  };
  run_ranks(with("3"), 2);
  const auto before = list_tags(posix_storage(), path("c"));
  configure(R"(, "gradient_clipping": 0)");
  std::string text = read_file(path("ds.json"));
  text.replace(text.find("1e-3"), 4, "1e39");  // the weights of step 4 are infinite, and saved
  write_file(path("ds.json"), text);
  Ranks ranks(with("20"), 2);
  const auto results = ranks.wait();
  for (const auto& result : results) {
    EXPECT_EQ(result.status, 4) << result.out << result.err;
    EXPECT_THAT(result.err, testing::HasSubstr("was not applied: the loss of micro-batch 0"));
  }
  // Each checkpoint that was written has its line, that of the save under way at the error too.
  for (const TagEntry& tag : list_tags(posix_storage(), path("c"))) {
    if (tag.tag == "global_step2" || tag.tag == "global_step3") continue;  // of the first run
    EXPECT_THAT(results[0].out, testing::HasSubstr("saved " + tag.tag + ":"));
  }
  for (const TagEntry& tag : before)
    EXPECT_NO_THROW(open_checkpoint(posix_storage(), path("c"), tag.tag)) << tag.tag;
}

TEST_F(TrainGpt, AStepThatIsNotFiniteIsSkippedWhereTheConfigurationSaysSo) {
  configure(R"(, "non_finite": "skip", "gradient_clipping": 0)");
  std::string text = read_file(path("ds.json"));
  text.replace(text.find("1e-3"), 4, "1e38");
  write_file(path("ds.json"), text);
  const auto results =
      run_ranks(command({"--steps", "6", "--save-dir", path("c"), "--losses", path("log")}), 2);
  EXPECT_THAT(results[0].out, testing::HasSubstr("skipped: not finite"));
  EXPECT_THAT(read_file(path("log")), testing::HasSubstr(R"("skipped":true)"));
  EXPECT_LT(open_checkpoint(posix_storage(), path("c"), {})->catalog().step, 6);
}

TEST_F(TrainGpt, RanksWithDifferentBackendsOrModelsAreErrorsOnAll) {
  const int port = free_port();
  const auto rank = [&](int number, const std::vector<std::string>& more) {
    return rank_of_two(number, command(more), port);
  };
  {
    Process first = rank(0, {"--device", "auto", "--backend", "gloo"});
    Process second = rank(1, {"--device", "auto", "--backend", "nccl"});
    for (const auto& result : {first.wait(), second.wait()}) {
      EXPECT_EQ(result.status, 2) << result.err;
      EXPECT_THAT(result.err, testing::HasSubstr("backend nccl and 1 with gloo"));
    }
  }
  Process first = rank(0, {"--seed", "1"}), second = rank(1, {"--seed", "2"});
  for (const auto& result : {first.wait(), second.wait()}) {
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_THAT(result.err, testing::HasSubstr("rank 1 differs from rank 0: it has "
                                               "\"configuration /seed: 2\""));
  }
}

TEST_F(TrainGpt, RanksThatAreToldOtherThingsAreErrorsOnAll) {
  std::string other = read_file(path("text"));
  std::ranges::reverse(other);
  write_file(path("other"), other);
  struct Told {
    std::vector<std::string> first, second;
    const char* difference;
  };
  const auto with = [&](const std::vector<std::string>& more) {
    auto argv = of_model("nano", {"--layers", "1", "--width", "16", "--steps", "2"});
    if (more.size() == 2 && more[0] == "--data") {
      *std::ranges::find(argv, path("text")) = more[1];
      return argv;
    }
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  };
  for (const Told& told : {Told{{"--dropout", "0.1"}, {"--dropout", "0.2"}, "model /"},
                           Told{{}, {"--data", path("other")}, "--data with digest"},
                           Told{{"--save", path("run")}, {}, "--save"},
                           Told{{"--save-interval", "1", "--save", path("run")},
                                {"--save", path("run")},
                                "--save-interval"},
                           Told{{}, {"--fresh"}, "--fresh"}}) {
    const int port = free_port();
    Process first = rank_of_two(0, with(told.first), port);
    Process second = rank_of_two(1, with(told.second), port);
    for (const auto& result : {first.wait(), second.wait()}) {
      EXPECT_EQ(result.status, 2) << told.difference << result.err;
      EXPECT_THAT(result.err, testing::AllOf(testing::HasSubstr("rank 1 differs from rank 0"),
                                             testing::HasSubstr(told.difference)));
    }
    EXPECT_FALSE(std::filesystem::exists(path("run/latest")));
  }
}

TEST_F(TrainGpt, ARunWhoseStepsAreAllSkippedFailsAndSavesNothing) {
  configure(R"(, "fp16": {"enabled": true, "loss_scale": 1e18})");
  const auto result = run(command({"--steps", "3", "--save", path("run")}));
  EXPECT_EQ(result.status, 4) << result.err;
  EXPECT_THAT(result.err, testing::HasSubstr("all 3 steps were skipped"));
  EXPECT_FALSE(std::filesystem::exists(path("run/latest")));
}

TEST_F(TrainGpt, ARankThatIsSilentAtTheStartIsFoundByTheTimeout) {
  const auto result =
      rank_of_two(0, command({"--steps", "1", "--timeout", "2"}), free_port()).wait();
  EXPECT_EQ(result.status, 3) << result.err;
  EXPECT_THAT(result.err, testing::Not(testing::HasSubstr("please report")));
}

TEST_F(TrainGpt, TakesADeviceOrSaysOnEveryRankThatThereIsNone) {
  run_ranks(command({"--steps", "1", "--device", "auto"}), 2);
  const auto refused = run(command({"--steps", "1", "--backend", "nccl"}));
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, testing::HasSubstr("--backend nccl works between CUDA devices"));
  EXPECT_THAT(run(command({"--device", "gpu"})).err, testing::HasSubstr("{auto,cpu,cuda}"));
  if (run(command({"--steps", "1", "--device", "cuda"})).status == 0)
    GTEST_SKIP() << "there is a CUDA device";
  Ranks ranks(command({"--steps", "1", "--device", "cuda"}), 2);
  for (const ProcessResult& result : ranks.wait()) {
    EXPECT_EQ(result.status, 6) << result.err;
    EXPECT_THAT(result.err, testing::HasSubstr("there is no CUDA device"));
  }
}

TEST_F(TrainGpt, AStoreThatDoesNotAnswerIsNamed) {
  const SilentServer server;
  const Environment group{{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", std::to_string(server.port())}};
  Environment hosted = group;
  hosted.emplace_back("TORCHELASTIC_USE_AGENT_STORE", "True");
  Process of_torchrun(command({"--timeout", "2"}), hosted);
  Process of_rank0(command({"--timeout", "2"}), group);
  const std::string where = fmt::format("127.0.0.1:{} does not answer", server.port());
  const auto torchrun = of_torchrun.wait();
  EXPECT_EQ(torchrun.status, 3);
  EXPECT_NE(torchrun.err.find("torchrun's store at " + where), std::string::npos) << torchrun.err;
  EXPECT_NE(torchrun.err.find("torchrun is probably of another torch version"), std::string::npos);
  const auto rank0 = of_rank0.wait();
  EXPECT_EQ(rank0.status, 3);
  EXPECT_NE(rank0.err.find("rank 0 at " + where), std::string::npos) << rank0.err;
}

TEST_F(TrainGpt, MpirunStartsIt) {
  if (run({"mpirun", "--version"}).out.find("Open MPI") == std::string::npos)
    GTEST_SKIP() << "Open MPI's mpirun is not installed";
  auto mpirun = command({"--steps", "3", "--stage", "2", "--losses", path("mpi")});
  const std::vector<std::string> prefix{"mpirun", "-np", "2", "--oversubscribe"};
  mpirun.insert(mpirun.begin(), prefix.begin(), prefix.end());
  const auto result =
      run(mpirun, {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("world size 2 (openmpi)"), std::string::npos) << result.out;
  run_ranks(command({"--steps", "3", "--losses", path("alone")}), 1);
  EXPECT_EQ(losses("mpi"), losses("alone"));
}

TEST_F(TrainGpt, SigtermOfOneRankSavesAndEndsAllWithZero) {
  Ranks ranks(command({"--steps", "1000000", "--stage", "2", "--save-dir", path("c")}), 2);
  while (ranks[0].output_so_far().find("step ") == std::string::npos && ranks[0].running()) {
    std::this_thread::sleep_for(20ms);
  }
  ranks[1].signal(SIGTERM);
  const auto results = ranks.wait();
  for (const auto& result : results) EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(results[0].out.find("stopped by a signal"), std::string::npos);
  EXPECT_EQ(list_tags(posix_storage(), path("c")).size(), 1u);
}

TEST_F(TrainGpt, SigtermWhileASaveIsUnderWayWaitsForItAndSavesAgain) {
  Ranks ranks(command({"--steps", "1000000", "--stage", "2", "--save-dir", path("c"),
                       "--async-save", "--save-interval", "1", "--keep-last", "3"}),
              2);
  while (ranks[0].output_so_far().find("saved global_step1:") == std::string::npos &&
         ranks[0].running()) {
    std::this_thread::sleep_for(20ms);
  }
  ranks[0].signal(SIGTERM);
  const auto results = ranks.wait();
  for (const auto& result : results) EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(results[0].err, testing::HasSubstr("a signal ends the run when the present step"));
  const auto tags = list_tags(posix_storage(), path("c"));
  EXPECT_EQ(tags.size(), 3u);
  for (const TagEntry& tag : tags) EXPECT_TRUE(tag.problem.empty()) << tag.problem;
  const CheckpointReader last(posix_storage(), resolve_checkpoint(posix_storage(), path("c"), {}));
  const std::int64_t step = last.catalog().step;
  EXPECT_NE(results[0].out.find(fmt::format("stopped by a signal after step {}\n", step)),
            std::string::npos)
      << results[0].out;
  // The first save has none before it to wait for.
  EXPECT_THAT(results[0].out, testing::ContainsRegex(
                                  "saved global_step1: [0-9.]+ MB in [0-9.]+ s \\([0-9]+ MB/s\\), "
                                  "training waited [0-9.]+ s, identity [0-9a-f]+\n"));
  for (std::int64_t each = 1; each <= step; ++each) {
    EXPECT_NE(results[0].out.find(fmt::format("saved global_step{}:", each)), std::string::npos);
  }
}

/// How a run saves.
struct SaveMode {
  const char* name;
  std::vector<std::string> flags;
};

void PrintTo(const SaveMode& mode, std::ostream* out) { *out << mode.name; }

struct Crash {
  int step;
  int rank;
};

/// A crash of rank 0 before each step of a save, and of rank 1 before the steps that it takes.
std::vector<Crash> crashes() {
  std::vector<Crash> all;
  for (int step = 1; step <= kCommitStepCount; ++step) all.push_back({step, 0});
  all.push_back({static_cast<int>(CommitStep::WriteShard), 1});
  all.push_back({static_cast<int>(CommitStep::SyncShard), 1});
  return all;
}

class CrashDuringSave : public TrainGpt, public testing::WithParamInterface<SaveMode> {
 protected:
  /// The command of a run of six steps with three saves to `folder`.
  std::vector<std::string> saving(const std::string& folder, std::vector<std::string> more) const {
    for (const char* word : {"--steps", "6", "--save-interval", "2", "--keep-last", "2"})
      more.emplace_back(word);
    more.insert(more.end(), {"--losses", path(folder + ".losses"), "--save-dir", path(folder)});
    more.insert(more.end(), GetParam().flags.begin(), GetParam().flags.end());
    return command(more);
  }

  /// Goes on at stage 3 on `world` ranks.
  void crash_and_go_on(const Crash& crash, const std::string& folder, int world) const {
    const auto results =
        Ranks(killed(saving(folder, {"--stage", "2"})), 2, kill_at(2, crash.step, crash.rank))
            .wait();
    EXPECT_EQ(results[static_cast<std::size_t>(crash.rank)].status, 128 + SIGKILL);
    EXPECT_NE(results[static_cast<std::size_t>(1 - crash.rank)].status, 0);
    const auto tags = list_tags(posix_storage(), path(folder));
    ASSERT_FALSE(tags.empty());
    for (const TagEntry& tag : tags)
      EXPECT_TRUE(tag.problem.empty()) << tag.tag << ": " << tag.problem;
    run_ranks(saving(folder, {"--stage", "3", "--resume"}), world);
  }
};

TEST_P(CrashDuringSave, LeavesACheckpointThatGoesOnBitEqual) {
  run_ranks(saving("whole", {}), 1);
  const std::vector<Crash> all = crashes();
  for (const Crash& crash : all) {
    SCOPED_TRACE(fmt::format("step {} of rank {}", crash.step, crash.rank));
    const std::string folder = fmt::format("crash-{}-{}", crash.step, crash.rank);
    crash_and_go_on(crash, folder, &crash == &all.front() ? 3 : 1);
    EXPECT_EQ(losses(folder + ".losses"), losses("whole.losses"));
    EXPECT_EQ(identity_of(folder), identity_of("whole"));
  }
}

const SaveMode kSaveModes[] = {{"Blocking", {"--no-async-save"}},
                               {"Async", {"--async-save"}},
                               {"AsyncIncremental", {"--async-save", "--incremental-save"}}};

INSTANTIATE_TEST_SUITE_P(EveryStep, CrashDuringSave, testing::ValuesIn(kSaveModes),
                         [](const auto& mode) { return mode.param.name; });

TEST_F(TrainGpt, AnotherModelOrOptimizerIsAMismatchThatListsEverything) {
  run_ranks(command({"--steps", "1", "--save-dir", path("c")}), 1);
  auto resume = command({"--steps", "2", "--save-dir", path("c"), "--resume", "--layers", "2"});
  const auto two_layers = run(resume);
  EXPECT_NE(two_layers.status, 0);
  EXPECT_NE(two_layers.err.find("\n  missing: h.1.ln_1.weight [fp32]\n"), std::string::npos)
      << two_layers.err;
  EXPECT_NE(two_layers.err.find("and 16 more"), std::string::npos) << two_layers.err;
  const auto wider =
      run(command({"--steps", "2", "--save-dir", path("c"), "--resume", "--width", "32"}));
  EXPECT_NE(
      wider.err.find("shape: wte.weight [fp32] is [256, 16] in the checkpoint, [256, 32] here"),
      std::string::npos)
      << wider.err;
}

/// Every file below `folder` with its bytes; links by their targets.
std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    std::string& text = found[entry.path().string()];
    if (!entry.is_regular_file()) continue;
    text = read_file(entry.path());
  }
  return found;
}

/// What train_gpt does with folders that hold something already, and with those that it cannot use.
class TrainGptFolder : public TrainGpt {
 protected:
  /// A run of `steps` that saves to `folder` every second step.
  std::vector<std::string> saving(const std::string& folder, std::vector<std::string> more) const {
    more.insert(more.end(),
                {"--save", path(folder), "--save-interval", "2", "--losses", path("losses")});
    return command(more);
  }
  /// All ranks fail before the first step; returns what rank 0 said.
  std::string refusal(const std::vector<std::string>& argv, int status = 3, int world = 2) const {
    std::filesystem::remove(path("losses"));
    const auto results = Ranks(argv, world).wait();
    for (const auto& result : results) {
      EXPECT_EQ(result.status, &result == &results.front() ? status : 3) << result.err;
      EXPECT_EQ(result.out.find("step "), std::string::npos) << result.out;
      EXPECT_NE(result.err.find("train_gpt: rank "), std::string::npos) << result.err;
    }
    EXPECT_TRUE(losses("losses").empty());
    return results[0].err;
  }
  static void expect_in(const std::string& part, const std::string& text) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  /// `script` with "$@" for the command.
  static ProcessResult run_in_shell(const std::string& script,
                                    const std::vector<std::string>& command) {
    std::vector<std::string> argv{"bash", "-c", script, "bash"};
    argv.insert(argv.end(), command.begin(), command.end());
    return run(argv);
  }
};

TEST_F(TrainGptFolder, WithoutMemoryItSaysWhatWouldNeedLess) {
  const auto failed = run_in_shell("ulimit -v 2000000; exec \"$@\"",
                                   command({"--steps", "1", "--width", "1024", "--layers", "12"}));
  EXPECT_EQ(failed.status, 3);
  for (const char* words : {"hint: the training state of a rank takes about 5.",
                            "stage 3 with offload_optimizer to nvme would need "}) {
    EXPECT_NE(failed.err.find(words), std::string::npos) << failed.err;
  }
}

TEST_F(TrainGptFolder, AnotherProgramsFolderIsResumedFromAndLeftAlone) {
  run_ranks(saving("run", {"--steps", "2"}), 2);
  const auto made = unishard({"convert", path("run"), path("ds"), "--to", "deepspeed"});
  ASSERT_EQ(made.status, 0) << made.err;
  const auto before = contents(path("ds"));
  for (const std::vector<std::string>& resume :
       std::vector<std::vector<std::string>>{{"--resume"}, {"--resume", "--fresh"}, {}}) {
    auto more = resume;
    more.insert(more.end(), {"--steps", "4"});
    const std::string error = refusal(saving("ds", more));
    expect_in("ds holds a checkpoint of another program (deepspeed, \"global_step2\")", error);
    expect_in("--resume " + path("ds") + " --save OTHER", error);
    EXPECT_EQ(contents(path("ds")), before);
  }
  const auto on = run_ranks(saving("new", {"--steps", "4", "--resume", path("ds")}), 2);
  expect_in("resumed ds at step 2", on[0].out);
  EXPECT_EQ(contents(path("ds")), before);
  EXPECT_EQ(list_tags(posix_storage(), path("new")).size(), 1u);
}

TEST_F(TrainGptFolder, WhatHasTheNameOfATagIsLeftAlone) {
  std::filesystem::create_directories(path("c/global_step2"));
  write_file(path("c/global_step2/thesis.tex"), "mine");
  for (const char* taken : {"c/global_step2", "c/global_step5"}) {
    const auto before = contents(path("c"));
    const std::string error = refusal(saving("c", {"--steps", "5"}));
    expect_in(path(taken) + " is there already and is not a UniShard checkpoint", error);
    EXPECT_EQ(contents(path("c")), before);
    std::filesystem::remove_all(path("c/global_step2"));
    write_file(path("c/global_step5"), "mine");
  }
}

TEST_F(TrainGptFolder, ALostManifestIsNoFreshStart) {
  run_ranks(saving("c", {"--steps", "2"}), 2);
  std::filesystem::remove(path("c/global_step2/manifest.json"));
  std::filesystem::remove(path("c/latest"));
  const auto before = contents(path("c"));
  const std::string error = refusal(saving("c", {"--steps", "4", "--resume", "--keep-last", "1"}));
  expect_in("global_step2 holds shards and no manifest.json", error);
  expect_in("`unishard inspect " + path("c") + " --tags`", error);
  expect_in("--fresh", error);
  expect_in("global_step2 is there already",
            refusal(saving("c", {"--steps", "4", "--resume", "--fresh"})));
  EXPECT_EQ(contents(path("c")), before);
  const auto fresh = run_ranks(
      saving("c", {"--steps", "4", "--resume", "--fresh", "--keep-last", "1", "--tag", "again"}),
      2);
  expect_in("starting fresh beside it", fresh[0].out);
  const auto after = contents(path("c"));
  for (const auto& [name, bytes] : before) EXPECT_TRUE(after.contains(name)) << name;
  EXPECT_EQ(list_tags(posix_storage(), path("c")).size(), 1u);
}

TEST_F(TrainGptFolder, ARunThatForgetsResumeRemovesNothing) {
  run_ranks(saving("c", {"--steps", "4"}), 2);
  const auto before = contents(path("c"));
  const std::string error = refusal(saving("c", {"--steps", "4", "--keep-last", "1"}));
  expect_in("contains the checkpoints of a run, the newest of which is global_step4", error);
  expect_in("--resume", error);
  expect_in("global_step2 is there already", refusal(saving("c", {"--steps", "4", "--fresh"})));
  EXPECT_EQ(contents(path("c")), before);
  const auto fresh =
      run_ranks(saving("c", {"--steps", "4", "--fresh", "--keep-last", "1", "--tag", "again"}), 2);
  expect_in("starting fresh beside", fresh[0].out);
  EXPECT_EQ(list_tags(posix_storage(), path("c")).size(), 4u);
}

TEST_F(TrainGptFolder, ADamagedCheckpointNamesTheNewestWholeOne) {
  run_ranks(saving("c", {"--steps", "8"}), 2);
  const auto damage = [&](const std::string& file) {
    const Manifest manifest = read_manifest(posix_storage(), path("c/global_step8"));
    overwrite(path("c/" + file), manifest.shards[1].data_sets[0].offset, "?");
  };
  std::filesystem::resize_file(path("c/global_step6/shard-00000-of-00002.h5"), 5000);
  damage("global_step8/shard-00001-of-00002.h5");
  const auto said = [&](const std::string& resume) {
    std::string all;
    for (const auto& result : Ranks(saving("c", {"--steps", "10", "--resume", resume}), 2).wait()) {
      EXPECT_NE(result.status, 0) << result.out;
      all += result.err;
    }
    return all;
  };
  for (const std::string& resume :
       {std::string("latest"), std::string("global_step8"), path("c")}) {
    const std::string error = said(resume);
    expect_in("c/global_step8/shard-00001-of-00002.h5", error);
    expect_in("--resume " + path("c/global_step4"), error);
    expect_in("global_step2", error);
    EXPECT_EQ(error.find("global_step6"), std::string::npos) << error;
  }
  const std::string manifest = path("c/global_step8/manifest.json");
  write_file(manifest, read_file(manifest) + "x");
  const std::string error = said("latest");
  expect_in("c/global_step8/manifest.json", error);
  expect_in("--resume " + path("c/global_step4"), error);
  EXPECT_EQ(error.find("global_step6"), std::string::npos) << error;
  const auto on = run_ranks(saving("c", {"--steps", "5", "--resume", path("c/global_step4")}), 2);
  expect_in("resumed global_step4 at step 4", on[0].out);
}

TEST_F(TrainGptFolder, PathsMayHoldAnyCharacter) {
  const std::string odd = "a\nb\tc\x01 \"d\"";
  run_ranks(saving(odd, {"--steps", "2"}), 2);
  for (const std::string& resume : {std::string("latest"), path(odd), path(odd + "/global_step2"),
                                    std::string("global_step2")}) {
    const auto on = run_ranks(saving(odd, {"--steps", "2", "--resume", resume}), 2);
    expect_in("resumed global_step2 at step 2", on[0].out);
  }
  const auto made = unishard({"convert", path(odd), path("ds\n"), "--to", "deepspeed"});
  ASSERT_EQ(made.status, 0) << made.err;
  run_ranks(saving("new", {"--steps", "2", "--resume", path("ds\n")}), 2);
  expect_in("gone\\x0ax does not exist",
            refusal(saving("new", {"--steps", "2", "--resume", path("gone\nx")})));
}

TEST_F(TrainGptFolder, AFirstSaveThatNeverCommittedIsKeptUntilOneDoes) {
  Ranks(killed(saving("c", {"--steps", "2", "--stage", "2"})), 2, kill_at(1, 7, 0)).wait();
  const Path shard = "shard-00000-of-00002.h5";
  const auto staged = contents(path("c"));
  EXPECT_TRUE(std::ranges::any_of(
      staged, [&](const auto& entry) { return Path(entry.first).filename() == shard; }));
  const auto on = run_ranks(saving("c", {"--steps", "4", "--resume"}), 2);
  expect_in("no save was ever completed in " + path("c"), on[0].out);
  expect_in("global_step2.partial-", on[0].out);
  EXPECT_EQ(list_tags(posix_storage(), path("c")).size(), 2u);
}

TEST_F(TrainGptFolder, TheSecondRunOfAFolderFailsNamingTheFirst) {
  Ranks first(command({"--steps", "1000000", "--save", path("c")}), 2);
  while (first[0].output_so_far().find("step ") == std::string::npos && first[0].running())
    std::this_thread::sleep_for(20ms);
  const std::string error = refusal(saving("c", {"--steps", "4"}));
  expect_in(path("c") + " is being written by process " + std::to_string(first[0].pid()), error);
  expect_in("since ", error);
  EXPECT_TRUE(first[0].running());
  first[0].signal(SIGTERM);
  for (const auto& result : first.wait()) EXPECT_EQ(result.status, 0) << result.err;
  run_ranks(saving("c", {"--steps", "0", "--resume"}), 1);
}

TEST_F(TrainGptFolder, AnUnusableFolderIsFoundBeforeTheFirstStep) {
  write_file(path("file"), "mine");
  std::filesystem::create_symlink("gone/far", path("link"));
  const auto check = [&](const std::string& folder, const std::string& says) {
    SCOPED_TRACE(folder);
    expect_in(says,
              refusal(command({"--steps", "2", "--save", folder, "--losses", path("losses")})));
  };
  for (const std::string& folder :
       {path("file"), path("file/x"), path("link"), std::string("/proc"), std::string("/proc/x")}) {
    check(folder, folder);
  }
  check(path(std::string(300, 'x')), "File name too long");
  const auto losses = [&](const std::string& to) {
    return refusal(command({"--steps", "2", "--save", path("c"), "--losses", to}));
  };
  expect_in("opening " + path("c"), losses(path("c")));
  expect_in("opening " + path("gone/losses"), losses(path("gone/losses")));
}

TEST_F(TrainGptFolder, WrongNumbersAndNamesAreUsageErrors) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--save", ""},
      {"--losses", ""},
      {"--save", path("c"), "--tag", "a/b"},
      {"--save", path("c"), "--tag", ".hidden"},
      {"--save", path("c"), "--tag", std::string(200, 'x')},
      {"--async-save", "--no-async-save"},
      {"--steps", "-1"},
      {"--steps", "9223372036854775808"},
      {"--steps", "nan"},
      {"--steps", "9223372036854775807"},
      {"--save-interval", "-1"},
      {"--save-interval", "1e999"},
      {"--keep-last", "-1"},
      {"--keep-last", "4294967296"},
      {"--timeout", "0"},
      {"--timeout", "4294967296"},
      {"--threads", "0"},
      {"--threads", "1000000000"},
      {"--layers", "9223372036854775807"},
      {"--width", "99999999999"},
      {"--heads", "0"},
      {"--heads", "3"},
      {"--context", "4611686018427387904"},
      {"--vocab-size", "4611686018427387904"},
      {"--dropout", "nan"},
      {"--dropout", "1"},
      {"--seed", "-1"},
      {"--seed", "9223372036854775808"},
      {"--stage", "4"}};
  for (const auto& more : wrong) {
    SCOPED_TRACE(more[more.size() - 2] + " " + more.back());
    const auto result = run(command(more));
    EXPECT_EQ(result.status, 2) << result.err << result.out;
    EXPECT_FALSE(result.err.empty());
    EXPECT_EQ(result.err.find("internal"), std::string::npos) << result.err;
  }
  for (const char* numbers :
       {R"("gradient_clipping": 1e999)", R"("gradient_clipping": NaN)",
        R"("optimizer": {"params": {"lr": 1e999}})", R"("optimizer": {"params": {"lr": -1}})",
        R"("optimizer": {"params": {"weight_decay": -0.1}})", R"("zero_optimization": "3")",
        R"("train_batch_size": 9223372036854775808)", R"("train_batch_size": 1e300)",
        R"("train_batch_size": 9223372036854775807)"}) {
    SCOPED_TRACE(numbers);
    write_file(path("ds.json"), "{" + std::string(numbers) + "}");
    const auto result = run(command({"--stage", "1"}));
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_EQ(result.err.find("internal"), std::string::npos) << result.err;
  }
}

TEST_F(TrainGptFolder, OutputThatCannotBeWrittenStopsNoTraining) {
  for (const std::string redirection :
       {">/dev/full", ">&-", ">/dev/full 2>/dev/full", "<&- >&- 2>&-"}) {
    SCOPED_TRACE(redirection);
    std::filesystem::remove_all(path("c"));
    std::filesystem::remove(path("losses"));
    const auto result = run_in_shell("exec \"$@\" " + redirection, saving("c", {"--steps", "3"}));
    EXPECT_EQ(result.status, 3) << result.err;
    if (redirection.find('2') == std::string::npos)
      expect_in("error: standard output could not be written", result.err);
    EXPECT_EQ(losses("losses").size(), 3u);
    EXPECT_EQ(list_tags(posix_storage(), path("c")).size(), 2u);
    const auto sound = unishard({"verify", path("c"), "--all"});
    EXPECT_EQ(sound.status, 0) << sound.out << sound.err;
  }
  const auto unheard = run_in_shell("exec \"$@\" 2>/dev/full", saving("c2", {"--steps", "1"}));
  EXPECT_EQ(unheard.status, 0);
  const auto closed_pipe =
      run_in_shell("set -o pipefail; \"$@\" | true", command({"--steps", "3"}));
  EXPECT_EQ(closed_pipe.status, 3) << closed_pipe.err;
}

TEST_F(TrainGptFolder, ATornLineOfLossesIsEndedFirst) {
  write_file(path("losses"), "{\"step\": 1, \"lo");
  ASSERT_EQ(Process(command({"--steps", "1", "--losses", path("losses")})).wait().status, 0);
  const std::string text = read_file(path("losses"));
  EXPECT_THAT(text, testing::StartsWith("{\"step\": 1, \"lo\n{\"step\":1,"));
}

TEST_F(TrainGptFolder, LossesThatCannotBeWrittenAreAnErrorAtTheEnd) {
  auto argv = command({"--steps", "3", "--save", path("c"), "--losses", "/dev/full"});
  const auto results = Ranks(argv, 2).wait();
  EXPECT_EQ(results[0].status, 3);
  EXPECT_EQ(results[1].status, 3);
  expect_in("warning: writing /dev/full: No space left on device: losses are missing from step 1",
            results[0].err);
  expect_in("error: writing /dev/full", results[0].err);
  expect_in("saved global_step3:", results[0].out);
}

/// A save, which waits for the disk, takes longer than a step of this model.
TEST_F(TrainGptFolder, AnIntervalShorterThanASaveIsSaidOnce) {
  const auto result = Process(command({"--steps", "12", "--save", path("c"), "--save-interval", "1",
                                       "--async-save"}))
                          .wait();
  EXPECT_EQ(result.status, 0) << result.err;
  const std::string note = "or more, training would not wait for it";
  const std::size_t first = result.out.find(note);
  ASSERT_NE(first, std::string::npos) << result.out;
  EXPECT_EQ(result.out.find(note, first + 1), std::string::npos) << result.out;
}

TEST_F(TrainGptFolder, LossesAndTraceReplaceNothingElse) {
  const std::string before = read_file(path("text"));
  for (const char* option : {"--losses", "--trace", "--profile"}) {
    const auto refused = Process(command({"--steps", "1", option, path("text")})).wait();
    EXPECT_EQ(refused.status, exit_status(ErrorCode::AlreadyExists));
    expect_in("the file is no earlier output of", refused.err);
    EXPECT_EQ(read_file(path("text")), before);
    for (int time = 0; time < 2; ++time)
      EXPECT_EQ(Process(command({"--steps", "1", option, path("mine")})).wait().status, 0);
    std::filesystem::remove(path("mine"));
  }
}

TEST_F(TrainGptFolder, ATraceThatCannotBeWrittenIsAnErrorAtTheEnd) {
  const auto result =
      Process(command({"--steps", "2", "--save", path("c"), "--trace", "/dev/full"})).wait();
  EXPECT_EQ(result.status, 3);
  expect_in("error: writing /dev/full: No space left on device", result.err);
  expect_in("the training itself was completed, and its checkpoints were saved", result.err);
  expect_in("saved global_step2:", result.out);
}

TEST_F(TrainGptFolder, AProfileThatCannotBeWrittenIsAWarningAndAnErrorAtTheEnd) {
  const auto result =
      Process(command({"--steps", "4", "--save", path("c"), "--profile", "/dev/full"})).wait();
  EXPECT_EQ(result.status, 3);
  expect_in("warning: writing /dev/full: No space left on device; training goes on", result.err);
  expect_in("error: writing /dev/full: No space left on device", result.err);
  expect_in("saved global_step4:", result.out);
}

TEST_F(TrainGptFolder, StepsToProfileAreChecked) {
  const auto status_of = [&](std::initializer_list<std::string> words) {
    return Process(command(words)).wait().status;
  };
  for (const char* steps : {"0", "3-2", "2-", "-2", "two", "1-2-3", ""})
    EXPECT_EQ(status_of({"--steps", "1", "--profile-summary", "--profile-steps", steps}), 2)
        << steps;
  EXPECT_EQ(status_of({"--steps", "1", "--profile-steps", "1"}), 2) << "of what?";
  EXPECT_EQ(status_of({"--steps", "1", "--profile", ""}), 2);
  EXPECT_EQ(status_of({"--steps", "1", "--profile", path("x"), "--trace", path("x")}), 2);
  const auto result = Process(command({"--steps", "1", "--profile-summary"})).wait();
  EXPECT_EQ(result.status, 0);
  expect_in("nothing was profiled: this run had 1 steps", result.err);
}

TEST_F(TrainGptFolder, SighupSavesUnlessItIsIgnored) {
  const auto argv = command({"--steps", "1000000", "--save", path("c")});
  Process run(argv);
  while (run.output_so_far().find("step ") == std::string::npos && run.running())
    std::this_thread::sleep_for(20ms);
  run.signal(SIGHUP);
  const auto result = run.wait();
  EXPECT_EQ(result.status, 0) << result.err;
  expect_in("stopped by a signal", result.out);
  EXPECT_EQ(list_tags(posix_storage(), path("c")).size(), 1u);
  std::vector<std::string> nohup{"bash", "-c", "trap '' HUP; exec \"$@\" --resume", "bash"};
  nohup.insert(nohup.end(), argv.begin(), argv.end());
  Process ignoring(nohup);
  while (ignoring.output_so_far().find("step ") == std::string::npos && ignoring.running())
    std::this_thread::sleep_for(20ms);
  ignoring.signal(SIGHUP);
  const std::size_t before = ignoring.output_so_far().size();
  while (ignoring.output_so_far().size() < before + 400 && ignoring.running())
    std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(ignoring.running());
  ignoring.signal(SIGTERM);
  EXPECT_EQ(ignoring.wait().status, 0);
}

TEST_F(TrainGptFolder, LimitsOfTheSessionEndInASentence) {
  const auto small =
      run_in_shell("ulimit -f 8; exec \"$@\"", saving("c", {"--steps", "2", "--no-async-save"}));
  EXPECT_EQ(small.status, 3) << small.err;
  expect_in("File too large", small.err);
  EXPECT_TRUE(list_tags(posix_storage(), path("c")).empty());
  // 1,018 shards and a soft limit of 1,024 are the same case as these, and take longer.
  run_ranks(saving("whole", {"--steps", "2"}), 2);
  const auto many = unishard({"reshard", path("whole"), path("many"), "-w", "120"});
  ASSERT_EQ(many.status, 0) << many.err;
  const auto resumed = run_in_shell("ulimit -S -n 100; exec \"$@\"",
                                    command({"--steps", "3", "--resume", path("many") + "/"}));
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  expect_in("saved by world size 120", resumed.out);
}

TEST_F(TrainGptFolder, ThreadsThatCannotStartEndInASentence) {
  if (run({"setpriv", "--reuid=65534", "true"}).status != 0)
    GTEST_SKIP() << "the limit of processes does not bind this user, and no other can be taken";
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
  const auto refused =
      run_in_shell("ulimit -u 3; exec setpriv --reuid=65534 --clear-groups -- \"$@\"",
                   command({"--steps", "1"}));
  EXPECT_EQ(refused.status, 3) << refused.err;
  expect_in("starting thread ", refused.err);
}

class TrainGptOfHuggingFace : public TrainGpt {
 protected:
  /// Saves a run of the model "nano" of one layer, and makes it the model folder "model".
  void export_model() {
    run_ranks(command({"--steps", "2", "--stage", "3", "--save-dir", path("run")}), 2);
    const auto made = unishard({"zero_to_fp32", path("run"), path("model")});
    ASSERT_EQ(made.status, 0) << made.err;
  }
  Json config() const { return read_json(path("model/config.json")); }
  void write_config(const Json& config) const {
    write_file(path("model/config.json"), config.dump());
  }
};

TEST_F(TrainGpt, TokensOfAFileAndAHeadOfItsOwn) {
  std::string tokens;
  for (int i = 0; i < 4000; ++i) {
    const int token = i * i % 1000;
    tokens += {static_cast<char>(token & 0xff), static_cast<char>(token >> 8)};
  }
  write_file(path("tokens.bin"), tokens);
  const auto on_tokens = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--data", path("tokens.bin"), "--untied-head"});
    return command(more);
  };
  run_ranks(on_tokens({"--vocab-size", "1000", "--steps", "2", "--stage", "3", "--losses",
                       path("three"), "--save", path("run")}),
            3);
  run_ranks(
      on_tokens({"--vocab-size", "1000", "--steps", "2", "--stage", "2", "--losses", path("one")}),
      1);
  EXPECT_EQ(losses("one").size(), 2u);
  EXPECT_EQ(losses("one"), losses("three"));
  const CheckpointReader reader(posix_storage(),
                                resolve_checkpoint(posix_storage(), path("run"), {}));
  EXPECT_TRUE(reader.catalog().aliases.empty());
  EXPECT_TRUE(reader.catalog().find("lm_head.weight", state::kFp32));
  Ranks small(on_tokens({"--steps", "2"}), 1);
  const auto results = small.wait();
  EXPECT_NE(results[0].err.find("is outside of the model's vocabulary of 256"), std::string::npos)
      << results[0].err;
}

TEST_F(TrainGptOfHuggingFace, ARunBecomesAModelFolderThatARunStartsFrom) {
  export_model();
  EXPECT_EQ(config()["n_layer"], 1);
  EXPECT_EQ(config()["n_embd"], 16);
  EXPECT_EQ(config()["n_positions"], 32);
  EXPECT_EQ(config()["resid_pdrop"], 0.1);
  EXPECT_EQ(config()["tie_word_embeddings"], true);
  EXPECT_EQ(config()["architectures"], Json({"GPT2LMHeadModel"}));
  for (const std::string& model : {path("model"), path("model/model.safetensors/")}) {
    const auto results =
        run_ranks(of_model(path("model"), {"--steps", "0", "--stage", "3", "--resume", model}), 2);
    EXPECT_NE(results[0].out.find("holds weights only"), std::string::npos) << results[0].out;
  }
  const auto whole =
      run_ranks(of_model(path("model"), {"--steps", "1", "--stage", "3", "--resume", path("model"),
                                         "--save-dir", path("on"), "--losses", path("three")}),
                3);
  run_ranks(
      of_model(path("model"), {"--steps", "1", "--resume", path("model"), "--losses", path("one")}),
      1);
  EXPECT_EQ(losses("one"), losses("three"));
}

TEST_F(TrainGptOfHuggingFace, SamplesMayBeShorterThanTheModelsContext) {
  export_model();
  const auto with_context = [&](const std::string& context) {
    return run(of_model(path("model"), {"--steps", "1", "--resume", path("model"), "--save-dir",
                                        path("short"), "--context", context}));
  };
  EXPECT_THAT(with_context("33").err, testing::HasSubstr("longer than the model's context of 32"));
  EXPECT_EQ(with_context("16").status, 0);
  const auto made = unishard({"zero_to_fp32", path("short"), path("short-model")});
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(read_json(path("short-model/config.json")), config());
}

TEST_F(TrainGptOfHuggingFace, TheConfigurationTravelsThroughOtherFormats) {
  export_model();
  for (const std::string format : {"deepspeed", "dcp"}) {
    SCOPED_TRACE(format);
    const auto there = unishard({"convert", path("run"), path(format), "--to", format});
    ASSERT_EQ(there.status, 0) << there.err;
    const auto back = unishard(
        {"convert", path(format), path(format + "-hf"), "--to", "safetensors", "--weights-only"});
    ASSERT_EQ(back.status, 0) << back.err;
    EXPECT_EQ(read_json(path(format + "-hf/config.json")), config());
  }
}

TEST_F(TrainGptOfHuggingFace, WhatDoesNotFitIsRefusedByName) {
  export_model();
  const Json good = config();
  Json changed = good;
  changed["activation_function"] = "relu";
  write_config(changed);
  const auto relu = run(of_model(path("model"), {}));
  EXPECT_EQ(relu.status, 2);
  EXPECT_NE(relu.err.find("activation_function is \"relu\", not"), std::string::npos) << relu.err;
  changed = good;
  changed["vocab_size"] = 255;
  write_config(changed);
  const auto small = run(of_model(path("model"), {}));
  EXPECT_EQ(small.status, 2);
  EXPECT_NE(small.err.find("vocab_size is 255, and the tokens are bytes"), std::string::npos)
      << small.err;
  const auto nothing = run(of_model("micro", {}));
  EXPECT_EQ(nothing.status, 2);
  EXPECT_NE(nothing.err.find("no model preset \"micro\""), std::string::npos) << nothing.err;
  const auto gone = run(of_model(path("gone"), {}));
  EXPECT_EQ(gone.status, 3);
  EXPECT_NE(gone.err.find("gone/config.json"), std::string::npos) << gone.err;
}

TEST_F(TrainGpt, ResumeSaysWhatAPathIs) {
  const auto gone = run(command({"--resume", path("gone.pt/")}));
  EXPECT_EQ(gone.status, 3);
  EXPECT_NE(gone.err.find("gone.pt/ does not exist"), std::string::npos) << gone.err;
  for (const std::string slash : {"", "/"}) {
    const auto text = run(command({"--resume", path("text") + slash}));
    EXPECT_NE(text.err.find("text is in no known format"), std::string::npos) << text.err;
  }
  const auto unnamed = run(command({"--resume"}));
  EXPECT_NE(unnamed.err.find("--resume needs --save-dir, or a path"), std::string::npos)
      << unnamed.err;
}

TEST_F(TrainGpt, UsageAndConfigurationErrorsExitWithTwo) {
  EXPECT_EQ(run({UNISHARD_BIN "/train_gpt"}).status, 2);
  EXPECT_EQ(run({UNISHARD_BIN "/train_gpt", "--help"}).status, 0);
  configure(R"(, "train_batchsize": 3)");
  const auto unknown = run(command({}));
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("hint: did you mean train_batch_size?"), std::string::npos)
      << unknown.err;
}

TEST_F(TrainGpt, Stage3MemoryFallsWithTheWorldSize) {
  configure(R"(, "zero_optimization": {"stage3_prefetch_bucket_size": 0,
      "stage3_max_reuse_distance": 0})");
  const auto peak_at = [&](int world) {
    const auto out = run_ranks(command({"--steps", "1", "--stage", "3", "--width", "64", "--layers",
                                        "4", "--report-memory"}),
                               world)[0]
                         .out;
    const auto found = out.find("memory rank 0: ");
    EXPECT_NE(found, std::string::npos) << out;
    double now = 0, peak = 0, master = 0, optimizer = 0;
    EXPECT_EQ(std::sscanf(out.c_str() + found,
                          "memory rank 0: parameters %lf MB (peak %lf), master %lf, optimizer %lf",
                          &now, &peak, &master, &optimizer),
              4)
        << out;
    EXPECT_EQ(now, 0);  // nothing is gathered between steps
    return std::pair(peak, master + optimizer);
  };
  const auto [peak1, state1] = peak_at(1);
  const auto [peak4, state4] = peak_at(4);
  EXPECT_NEAR(state4, state1 / 4, 0.1 * state1);
  EXPECT_LT(peak4, 0.75 * state1 / 3);  // never all fp32 weights at once
}

}  // namespace
}  // namespace unishard::test
