// Not a test itself: how long a save keeps training waiting, beside a copy of the same bytes.
//
//   save_stall FOLDER [PRESET [STAGE [ROUNDS]]]
//
// A GPT in bf16 on one rank; medians with minimum and maximum. FOLDER gets checkpoints.
#include "unishard/trainer/construction.hpp"
#include "unishard/trainer/engine.hpp"
#include "unishard/trainer/gpt.hpp"

#include "checkpoint/in_parallel.hpp"

#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace unishard;
using namespace unishard::trainer;

constexpr std::int64_t kTokens = 256;  // of a step

void print(const char* what, std::vector<double> seconds) {
  std::ranges::sort(seconds);
  fmt::print("{:<42} {:.3f} s ({:.3f} to {:.3f})\n", what, seconds[seconds.size() / 2],
             seconds.front(), seconds.back());
}

double time(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Copies between memory that is there already.
class Copy {
 public:
  explicit Copy(std::size_t bytes) : from_(bytes, 1), to_(bytes, 2) {}
  double by_one_thread() {
    return time([&] { std::memcpy(to_.data(), from_.data(), from_.size()); });
  }
  double by_threads() {
    const std::size_t piece = std::size_t{8} << 20;
    return time([&] {
      trainer::detail::in_parallel((from_.size() + piece - 1) / piece, [&](std::size_t index) {
        const std::size_t at = index * piece;
        std::memcpy(to_.data() + at, from_.data() + at, std::min(piece, from_.size() - at));
      });
    });
  }

 private:
  std::vector<char> from_, to_;
};

void measure(const Path& folder, const std::string& preset, std::uint32_t stage, int rounds) {
  const auto alone = make_single_communicator();
  Config config;
  config.batch = {.train = 1, .micro = 1, .accumulation = {}};
  config.stage = stage;
  config.compute = DType::BFloat16;
  Gpt model{nullptr};
  {
    const ConstructionScope scope(placement_for(config, *alone));
    model = Gpt(gpt_preset(preset));
  }
  Engine engine(model.ptr(), *alone, config);
  engine.prepare_asynchronous_saves();
  fmt::print("{:.1f} M parameters, stage {}, {:.0f} MB staged\n",
             static_cast<double>(engine.parameter_count()) / 1e6, stage,
             static_cast<double>(engine.bytes_to_stage()) / 1e6);
  Copy copy(engine.bytes_to_stage());
  const at::Tensor tokens = at::arange(kTokens + 1, at::kLong).remainder(1000).unsqueeze(0);
  const auto step = [&] {
    return time(
        [&] { engine.train_batch([&](const MicroBatch&) { return model->loss(tokens); }); });
  };
  step();
  std::vector<double> one, threads, steps, saved_steps, stalls, totals, waits;
  for (int round = 0; round < rounds; ++round) {
    one.push_back(copy.by_one_thread());
    threads.push_back(copy.by_threads());
    steps.push_back(step());
    const auto save = [&](bool asynchronous) {
      return engine.save_checkpoint({.folder = folder, .tag = "t", .asynchronous = asynchronous});
    };
    const SaveHandle behind = save(true);
    const double next = step();
    stalls.push_back(behind.wait().stall_seconds);
    saved_steps.push_back(stalls.back() + next);
    totals.push_back(behind.wait().seconds);
    waits.push_back(save(false).wait().seconds);
  }
  print("copy, one thread", one);
  print("copy, as many threads as a save has", threads);
  print("step", steps);
  print("asynchronous save: the call", stalls);
  print("the call and the step after it", saved_steps);
  print("asynchronous save: until it is durable", totals);
  print("synchronous save", waits);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: save_stall FOLDER [PRESET [STAGE [ROUNDS]]]\n");
    return 2;
  }
  try {
    measure(argv[1], argc > 2 ? argv[2] : "gpt2",
            argc > 3 ? static_cast<std::uint32_t>(std::atoi(argv[3])) : 1,
            argc > 4 ? std::max(1, std::atoi(argv[4])) : 3);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "save_stall: {}\n", error.what());
    return 3;
  }
}
