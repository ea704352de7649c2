// What streams do at the same time, and the effect of each key that bounds it.
#include "unishard/trainer/trace.hpp"

#include "expect.hpp"
#include "small_model.hpp"

#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

namespace unishard::test {
namespace {

using namespace trainer;
using trainer::Stream;

constexpr int kBlocks = 4;

struct WideImpl : torch::nn::Module {
  WideImpl() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) { return x + linear(x).tanh(); }
  torch::nn::Linear linear;
};

/// Notes, in each block of the second step, the bytes of gathered parameters.
struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.emplace_back();
      register_module("block" + std::to_string(i), blocks.back());
    }
  }
  at::Tensor loss(const MicroBatch& batch) {
    at::Tensor x = at::full({2, kWidth}, 0.01 * static_cast<double>(batch.first_sample));
    for (auto& block : blocks) {
      if (before_block) before_block();
      x = block(x);
    }
    return x.pow(2).mean();
  }
  std::vector<Sharded<WideImpl>> blocks;
  std::function<void()> before_block;
};

std::size_t count_spans(const Trace& trace, const std::string& name) {
  const auto spans = trace.spans();
  return static_cast<std::size_t>(std::ranges::count_if(
      spans, [&](const Trace::Span& span) { return span.name.starts_with(name); }));
}

/// What rank 0 of two saw of the second of two steps.
struct Seen {
  std::vector<std::int64_t> live;  ///< units that were gathered before each block
  MemoryReport memory;
  std::size_t gathers = 0, publishes = 0;
  double loss = 0;
  std::int64_t unit_bytes = 0;
};

Config config_of(std::uint32_t stage, const std::function<void(ZeroLimits&)>& change) {
  Config config = small_config(stage);
  config.batch = {.train = 2, .micro = 1, .accumulation = {}};
  change(config.zero);
  return config;
}

Seen second_step(const Config& config) {
  Seen seen;
  run_threads(2, [&](Communicator& communicator) {
    const auto model = [] {
      const std::lock_guard lock(construction_mutex());
      torch::manual_seed(1);
      return std::make_shared<StackImpl>();
    }();
    Trace trace;
    const auto runtime = make_host_runtime({.trace = &trace});
    Engine engine(model, communicator, config, {.runtime = runtime.get()});
    const auto loss = [&](const MicroBatch& batch) { return model->loss(batch); };
    engine.train_batch(loss);
    const std::size_t gathers = count_spans(trace, "gather");
    const std::size_t publishes = count_spans(trace, "publish");
    engine.reset_memory_peak();
    std::vector<std::int64_t> live;
    model->before_block = [&] { live.push_back(engine.memory().parameters); };
    const StepStats stats = engine.train_batch(loss);
    if (communicator.rank() != 0) return;
    seen.live = std::move(live);
    seen.memory = engine.memory();
    seen.gathers = count_spans(trace, "gather") - gathers;
    seen.publishes = count_spans(trace, "publish") - publishes;
    seen.loss = stats.loss;
  });
  seen.unit_bytes = 2048 * 4;  // 40 * 40 + 40 elements, padded to 1024 on each of two ranks
  for (std::int64_t& bytes : seen.live) bytes /= seen.unit_bytes;
  return seen;
}

using Live = std::vector<std::int64_t>;

TEST(Overlap, WithoutItOneUnitIsGatheredAtATime) {
  const Seen seen = second_step(config_of(3, [](ZeroLimits& zero) {
    zero.overlap_comm = false;
    zero.max_reuse_distance = 0;
  }));
  EXPECT_EQ(seen.live, (Live{0, 0, 0, 0}));
  EXPECT_EQ(seen.memory.parameters_peak, seen.unit_bytes);
  EXPECT_EQ(seen.gathers, 2u * kBlocks - 1) << "the last block is used again at once";
}

TEST(Overlap, PrefetchGathersOneUnitAndWhatFitsIntoItsBucket) {
  const auto with_bucket = [](std::int64_t elements) {
    return second_step(config_of(3, [&](ZeroLimits& zero) {
      zero.prefetch_bucket_size = elements;
      zero.max_reuse_distance = 0;
    }));
  };
  EXPECT_EQ(with_bucket(0).live, (Live{0, 0, 0, 0}));
  EXPECT_EQ(with_bucket(1).live, (Live{1, 1, 1, 1})) << "one unit may be larger than the bucket";
  EXPECT_EQ(with_bucket(2048).live, (Live{1, 1, 1, 1}));
  EXPECT_EQ(with_bucket(4096).live, (Live{2, 2, 2, 2}));
}

TEST(Overlap, LiveParametersBoundPrefetchAndReuse) {
  const Seen seen =
      second_step(config_of(3, [](ZeroLimits& zero) { zero.max_live_parameters = 2 * 2048; }));
  EXPECT_EQ(seen.memory.parameters_peak, 2 * seen.unit_bytes);
}

TEST(Overlap, ReuseDistanceKeepsUnitsForTheBackwardPass) {
  const auto gathers = [](std::int64_t distance) {
    return second_step(config_of(3, [&](ZeroLimits& zero) { zero.max_reuse_distance = distance; }))
        .gathers;
  };
  EXPECT_EQ(gathers(0), 2u * kBlocks - 1);
  EXPECT_EQ(gathers(2 * 2048), 2u * kBlocks - 2);
  EXPECT_EQ(gathers(1'000'000'000), std::size_t{kBlocks});
}

TEST(Overlap, SmallUnitsStayGathered) {
  const Seen seen =
      second_step(config_of(3, [](ZeroLimits& zero) { zero.param_persistence_threshold = 2048; }));
  EXPECT_EQ(seen.gathers, 0u);
  EXPECT_EQ(seen.publishes, std::size_t{kBlocks});
  EXPECT_EQ(seen.live, Live(kBlocks, kBlocks));
}

TEST(Overlap, ReduceBucketBoundsTheGradientsThatWait) {
  const auto peak = [](std::int64_t elements) {
    return second_step(config_of(2, [&](ZeroLimits& zero) { zero.reduce_bucket_size = elements; }))
        .memory.reducing_peak;
  };
  EXPECT_EQ(peak(0), 2048 * 4);
  EXPECT_EQ(peak(2 * 2048), 3 * 2048 * 4) << "the one that is added waits for the oldest";
  EXPECT_EQ(peak(1'000'000), kBlocks * 2048 * 4);
}

TEST(Overlap, NoLimitChangesTheResult) {
  const double expected = second_step(config_of(0, [](ZeroLimits&) {})).loss;
  for (const std::uint32_t stage : {1u, 2u, 3u}) {
    EXPECT_EQ(second_step(config_of(stage, [](ZeroLimits&) {})).loss, expected) << stage;
    EXPECT_EQ(
        second_step(config_of(stage, [](ZeroLimits& zero) { zero.overlap_comm = false; })).loss,
        expected)
        << stage;
    EXPECT_EQ(second_step(config_of(stage,
                                    [](ZeroLimits& zero) {
                                      zero.param_persistence_threshold = 1 << 20;
                                      zero.allgather_bucket_size = 1;
                                    }))
                  .loss,
              expected)
        << stage;
  }
}

/// Runs one step on one rank. Each piece of communication begins only when the trace has `until`,
/// or after some seconds, when the test has failed. Returns how often it was there in time.
std::size_t step_whose_communication_waits_for(const std::string& until, const std::string& work,
                                               const Config& config) {
  const auto single = make_single_communicator();
  const auto model = std::make_shared<StackImpl>();
  Trace trace;
  std::size_t in_time = 0;
  const auto runtime =
      make_host_runtime({.trace = &trace, .before_work = [&](std::string_view name) {
                           if (!name.starts_with(work)) return;
                           for (int i = 0; i < 3000 && count_spans(trace, until) == 0; ++i)
                             std::this_thread::sleep_for(std::chrono::milliseconds(1));
                           if (count_spans(trace, until) > 0) ++in_time;
                         }});
  {
    Engine engine(model, *single, config, {.runtime = runtime.get()});
    engine.train_batch([&](const MicroBatch& batch) { return model->loss(batch); });
  }
  EXPECT_EQ(count_spans(trace, work), std::size_t{kBlocks});
  return in_time;
}

TEST(Overlap, GradientsAreReducedDuringTheBackwardPass) {
  Config config = config_of(2, [](ZeroLimits&) {});
  config.batch.train = 1;
  EXPECT_EQ(step_whose_communication_waits_for("backward", "reduce", config), std::size_t{kBlocks});
}

TEST(Overlap, WeightsAreSharedWhileTheNextUnitsAreUpdated) {
  Config config = config_of(1, [](ZeroLimits&) {});
  EXPECT_EQ(step_whose_communication_waits_for("update unit block3", "publish", config),
            std::size_t{kBlocks});
}

TEST(Overlap, LateStreamsChangeNoBit) {
  for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
    std::vector<double> losses[2];
    for (const bool late : {false, true}) {
      run_threads(3, [&](Communicator& communicator) {
        const Config config = small_config(stage, DType::BFloat16);
        SmallModel model = build(placement_for(config, communicator));
        std::minstd_rand random(communicator.rank() + 1);
        const auto runtime = make_host_runtime({.before_work = [&](std::string_view) {
          if (late) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
        }});
        Engine engine(model.ptr(), communicator, config, {.runtime = runtime.get()});
        for (int i = 0; i < 3; ++i) {
          const double loss = step(engine, model).loss;
          if (communicator.rank() == 0) losses[late].push_back(loss);
        }
      });
    }
    EXPECT_EQ(losses[0], losses[1]) << "stage " << stage;
  }
}

TEST(TraceFile, HasASpanForEachPieceOfWork) {
  Trace trace;
  const auto begin = Trace::Clock::now();
  trace.add("compute", "forward unit h.0", begin, begin + std::chrono::microseconds(5));
  trace.add("compute", "forward unit h.1", begin, begin + std::chrono::microseconds(7));
  const Json events = trace.events(3);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(trace.events(3, 1).size(), 1u);
  const Json& event = events[0];
  EXPECT_EQ(event["name"], "forward unit h.0");
  EXPECT_EQ(event["pid"], 3);
  EXPECT_NEAR(event["dur"].get<double>(), 5, 1e-6);
}

TEST(Runtime, AFailureOfAStreamIsThrownToWhoeverWaits) {
  const auto runtime = make_host_runtime();
  int done = 0;
  runtime->run(Stream::Communication, "fail", [] { raise(ErrorCode::PeerFailed, "gone"); });
  runtime->run(Stream::Communication, "later", [&] { ++done; });
  const EventPtr event = runtime->record(Stream::Communication);
  EXPECT_EQ(error_of([&] { runtime->wait(Stream::Compute, event); }).code(), ErrorCode::PeerFailed);
  EXPECT_EQ(done, 0) << "what comes after a failure may need its result";
}

}  // namespace
}  // namespace unishard::test
