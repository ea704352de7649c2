// What programs call beside train_batch(): the three calls, groups, gathered parameters, and units
// with several arguments and results.
#include "expect.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <tuple>

namespace unishard::test {
namespace {

using namespace trainer;

LossFunction loss_of(SmallModel& model) {
  return [&model](const MicroBatch& batch) { return model->loss(batch); };
}

/// One step by the three calls.
StepStats three_calls(Engine& engine, SmallModel& model) {
  while (true) {
    const at::Tensor loss = engine.forward(loss_of(model));
    const bool is_last = engine.is_gradient_accumulation_boundary();
    engine.backward(loss);
    const auto stats = engine.step();
    EXPECT_EQ(stats.has_value(), is_last);
    if (stats) return *stats;
  }
}

TEST(ThreeCalls, GiveTheBitsOfTrainBatch) {
  for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
    with_engine(2, small_config(stage), {},
                [&](Engine& engine, SmallModel& model, Communicator& communicator) {
                  SmallModel other = build(placement_for(engine.config(), communicator));
                  Engine beside(other.ptr(), communicator, engine.config());
                  for (int i = 0; i < 3; ++i) {
                    const StepStats mine = three_calls(engine, model), theirs = step(beside, other);
                    EXPECT_EQ(mine.loss, theirs.loss) << "stage " << stage;
                    EXPECT_EQ(mine.gradient_norm, theirs.gradient_norm);
                    EXPECT_EQ(mine.step, theirs.step);
                  }
                  expect_equal(parameters_of(engine, model), parameters_of(beside, other));
                });
  }
}

TEST(ThreeCalls, InAWrongOrderAreErrors) {
  with_engine(1, small_config(2), {}, [&](Engine& engine, SmallModel& model, Communicator&) {
    EXPECT_FALSE(engine.is_gradient_accumulation_boundary());
    EXPECT_EQ(error_of([&] { engine.step(); }).code(), ErrorCode::InvalidArgument);
    const at::Tensor loss = engine.forward(loss_of(model));
    EXPECT_EQ(error_of([&] { engine.step(); }).code(), ErrorCode::InvalidArgument);
    EXPECT_THROW(engine.forward(loss_of(model)), Error);
    EXPECT_THROW(engine.evaluate(loss_of(model), 1), Error);
    EXPECT_THROW(engine.train_batch(loss_of(model)), Error);
    const TempDir temp;
    const Error error = error_of([&] { engine.save_checkpoint({.folder = temp.path() / "run"}); });
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    engine.backward(loss);
    EXPECT_THROW(engine.backward(loss), Error);
  });
}

TEST(ThreeCalls, AfterAnExceptionTheStepBeginsAnew) {
  with_engine(2, small_config(3), {},
              [&](Engine& engine, SmallModel& model, Communicator& communicator) {
                SmallModel other = build(placement_for(engine.config(), communicator));
                Engine beside(other.ptr(), communicator, engine.config());
                const double expected = step(beside, other).loss;
                engine.backward(engine.forward(loss_of(model)));
                EXPECT_FALSE(engine.step());
                EXPECT_THROW(engine.forward([&](const MicroBatch& batch) -> at::Tensor {
                  model->loss(batch);
                  throw std::runtime_error("no data");
                }),
                             std::runtime_error);
                EXPECT_EQ(three_calls(engine, model).loss, expected);
                expect_equal(parameters_of(engine, model), parameters_of(beside, other));
              });
}

EngineOptions grouped(double rate_of_norms) {
  const Config config = small_config(0);
  EngineOptions options;
  options.groups = {{"matrices", config.hyper}, {"norms", config.hyper}, {"rest", config.hyper}};
  options.groups[1].hyper.lr = rate_of_norms;
  options.group_of = [](const std::string& fqn, const at::Tensor& parameter) -> std::size_t {
    if (fqn.find("norm") != std::string::npos) return 1;
    return parameter.dim() >= 2 ? 0 : 2;
  };
  return options;
}

TEST(ParameterGroups, AreThoseOfTheFunction) {
  for (const std::uint32_t stage : {0u, 3u}) {
    with_engine(2, small_config(stage), grouped(0),
                [&](Engine& engine, SmallModel& model, Communicator& communicator) {
                  const Parameters before = parameters_of(engine, model);
                  step(engine, model);
                  for (const auto& [name, value] : parameters_of(engine, model)) {
                    const bool is_fixed = name.find("norm") != std::string::npos ||
                                          name.find("frozen") != std::string::npos;
                    if (name.find("unused") != std::string::npos) continue;
                    EXPECT_EQ(at::equal(value, before.at(name)), is_fixed) << name;
                  }
                  communicator.barrier();
                });
  }
}

TEST(ParameterGroups, AGroupThatDoesNotExistIsAnError) {
  const auto single = make_single_communicator();
  SmallModel model;
  EngineOptions options = grouped(0);
  options.groups.resize(1);
  const Error error = error_of([&] { Engine(model.ptr(), *single, small_config(0), options); });
  EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
}

/// Counts what a rank sends over the engine's own group, and what it gives to the sums of
/// gradients, which go over a duplicate of it.
class CountedCommunicator final : public Communicator {
 public:
  explicit CountedCommunicator(Communicator& group) : group_(group) {}
  CountedCommunicator(std::unique_ptr<Communicator> group, std::shared_ptr<std::uint64_t> summed)
      : own_(std::move(group)), group_(*own_), summed_(std::move(summed)) {}
  std::uint32_t rank() const override { return group_.rank(); }
  std::uint32_t size() const override { return group_.size(); }
  WorkPtr all_gather(std::span<std::byte> out, std::span<const std::byte> in) override {
    ++messages;
    return group_.all_gather(out, in);
  }
  WorkPtr reduce_scatter_fold(std::span<float> sums, DType dtype,
                              std::span<const std::byte> in) override {
    ++messages;
    *summed_ += in.size();
    return group_.reduce_scatter_fold(sums, dtype, in);
  }
  WorkPtr broadcast(std::span<std::byte> bytes, std::uint32_t root) override {
    ++messages;
    return group_.broadcast(bytes, root);
  }
  void barrier() override {
    ++messages;
    group_.barrier();
  }
  std::unique_ptr<Communicator> duplicate() override {
    return std::make_unique<CountedCommunicator>(group_.duplicate(), summed_);
  }

  /// Bytes that this rank gave to sums, over this group and its duplicates.
  std::uint64_t summed_bytes() const { return *summed_; }

  int messages = 0;  ///< over this group alone

 private:
  std::unique_ptr<Communicator> own_;  ///< null where another owns the group
  Communicator& group_;
  std::shared_ptr<std::uint64_t> summed_ = std::make_shared<std::uint64_t>(0);
};

std::uint64_t trained_elements() {
  const SmallModel model;
  std::uint64_t elements = 0;
  for (const auto& each : model->named_parameters()) {
    const bool is_tied = each.key() == "out.weight";
    if (each.value().requires_grad() && !is_tied)
      elements += static_cast<std::uint64_t>(each.value().numel());
  }
  return elements;
}

/// In 16 bits, once for each micro-batch at stages 2 and 3; where the other stages have summed
/// several on the rank, those sums in fp32.
TEST(Engine, GradientsCrossOnceInTheirOwnType) {
  const std::uint64_t elements = trained_elements();
  for (const std::int64_t accumulation : {1, 3}) {
    for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
      run_threads(2, [&](Communicator& group) {
        CountedCommunicator counted(group);
        Config config = small_config(stage, DType::BFloat16);
        config.batch = {.train = 4 * accumulation, .micro = 2, .accumulation = {}};
        SmallModel model = build(placement_for(config, counted));
        Engine engine(model.ptr(), counted, config);
        const std::uint64_t before = counted.summed_bytes();
        step(engine, model);
        const bool sums_on_the_rank = stage < 2 && accumulation > 1;
        const std::uint64_t times = stage < 2 ? 1 : static_cast<std::uint64_t>(accumulation);
        const std::uint64_t expected = elements * (sums_on_the_rank ? 4 : 2) * times;
        EXPECT_GE(counted.summed_bytes() - before, expected) << stage;
        EXPECT_LT(counted.summed_bytes() - before, expected * 3 / 2) << stage;  // units are padded
      });
    }
  }
}

/// The order of the collectives is compared before the host waits for the device, because ranks
/// with another order never end. Losses and norm are one message.
TEST(Engine, AStepOfSeveralRanksSendsTwoMessagesBesidesTheTensors) {
  for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
    run_threads(2, [&](Communicator& group) {
      CountedCommunicator counted(group);
      const Config config = small_config(stage);
      SmallModel model = build(placement_for(config, counted));
      Engine engine(model.ptr(), counted, config);
      step(engine, model);
      counted.messages = 0;
      step(engine, model);
      EXPECT_EQ(counted.messages, 2) << stage;
    });
  }
}

/// So what a program's ranks decide after each step needs no message of its own.
TEST(Engine, AStepTellsEveryRankTheFlagsOfAll) {
  run_threads(3, [](Communicator& group) {
    CountedCommunicator counted(group);
    const Config config = small_config(2);
    std::uint32_t own = 0;
    SmallModel model = build(placement_for(config, counted));
    Engine engine(model.ptr(), counted, config, {.flags = [&] { return own; }});
    EXPECT_EQ(step(engine, model).flags, 0u);
    own = group.rank() == 0 ? 0 : std::uint32_t{1} << (group.rank() == 1 ? 31 : 0);
    counted.messages = 0;
    EXPECT_EQ(step(engine, model).flags, 0x80000001u);
    EXPECT_EQ(counted.messages, 2);
    own = 0;
    EXPECT_EQ(step(engine, model).flags, 0u);
  });
}

TEST(GatheredScope, TakesValuesBackToTheTrainingState) {
  for (const DType compute : {DType::Float32, DType::BFloat16}) {
    for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
      const TempDir temp;
      with_engine(
          2, small_config(stage, compute), {},
          [&](Engine& engine, SmallModel& model, Communicator& communicator) {
            const Parameters before = parameters_of(engine, model);
            {
              GatheredScope scope(engine, {"block1.up.weight", "out.weight"});
              if (communicator.rank() == 1) {
                const at::NoGradGuard no_grad;
                model->blocks[1]->up->weight.fill_(0.25);
                model->in->weight.mul_(2);
              }
              scope.write_back(1);
            }
            Parameters after = parameters_of(engine, model);
            EXPECT_TRUE(after.at("block1.up.weight").eq(0.25).all().item<bool>());
            EXPECT_TRUE(at::equal(after.at("in.weight"), before.at("in.weight") * 2));
            EXPECT_TRUE(at::equal(after.at("block0.up.weight"), before.at("block0.up.weight")));
            engine.save_checkpoint({.folder = temp.path() / "run", .tag = "t"}).wait();
            step(engine, model);
            engine.load_checkpoint(temp.path() / "run");
            expect_equal(parameters_of(engine, model), after);
          });
    }
  }
}

TEST(GatheredScope, GathersOnlyTheUnitsOfTheNames) {
  with_engine(2, small_config(3), {}, [&](Engine& engine, SmallModel&, Communicator&) {
    std::int64_t all = 0;
    {
      const GatheredScope scope(engine);
      all = engine.memory().parameters;
    }
    const GatheredScope scope(engine, {"block1.up.weight"});
    EXPECT_GT(engine.memory().parameters, 0);
    EXPECT_LT(engine.memory().parameters, all / 2);
    EXPECT_EQ(error_of([&] { GatheredScope(engine, {"nothing"}); }).code(), ErrorCode::NotFound);
  });
}

/// A plain value that the forward changes.
struct Count {
  int calls = 0;
};

struct PairImpl : torch::nn::Module {
  PairImpl() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x,
                                                          const std::optional<at::Tensor>& memory,
                                                          Count& count, double scale) {
    ++count.calls;
    at::Tensor y = linear(x).tanh() * scale;
    if (memory) y = y + *memory;
    return {y, {x + y, x * y}};
  }
  torch::nn::Linear linear;
};

struct PairModelImpl : torch::nn::Module {
  PairModelImpl() : in(register_module("in", torch::nn::Linear(8, kWidth))) {
    for (int i = 0; i < 3; ++i) {
      pairs.emplace_back();
      register_module("pair" + std::to_string(i), pairs.back());
    }
    chain =
        register_module("chain", torch::nn::Sequential(Sharded<InnerImpl>(), Sharded<InnerImpl>()));
  }
  at::Tensor loss(const MicroBatch& batch) {
    const double first = 0.1 * static_cast<double>(batch.first_sample + 1);
    at::Tensor x = in(at::full({2, 8}, first));
    const at::Tensor memory = x.sin();  // all pairs use it
    for (auto& pair : pairs) {
      auto [y, rest] = pair(x, std::optional(memory), count, 0.5);
      x = y + rest[0] + rest[1];
    }
    return chain->forward(x).pow(2).mean();
  }
  torch::nn::Linear in;
  std::vector<Sharded<PairImpl>> pairs;
  torch::nn::Sequential chain;
  Count count;
};

TEST(Sharded, TakesAndReturnsSeveralValues) {
  std::map<std::uint32_t, std::vector<double>> losses;
  for (const std::uint32_t stage : {0u, 2u, 3u}) {
    run_threads(2, [&](Communicator& communicator) {
      const auto model = [] {
        const std::lock_guard lock(construction_mutex());
        torch::manual_seed(5);
        return std::make_shared<PairModelImpl>();
      }();
      Config config = small_config(stage);
      config.canonical_order = true;
      config.zero.max_reuse_distance = 0;
      config.zero.prefetch_bucket_size = 0;
      Engine engine(model, communicator, config);
      for (int i = 0; i < 3; ++i) {
        engine.reset_memory_peak();
        const double loss =
            engine.train_batch([&](const MicroBatch& batch) { return model->loss(batch); }).loss;
        if (communicator.rank() == 0) losses[stage].push_back(loss);
      }
      EXPECT_EQ(model->count.calls, 3 * 3 * 3) << "the plain value was passed on, not copied";
      if (stage < 3) return;
      const std::int64_t peak = engine.memory().parameters_peak;
      const GatheredScope all(engine);
      EXPECT_LT(peak, engine.memory().parameters / 2) << "a shared input keeps no unit gathered";
    });
  }
  EXPECT_EQ(losses[0], losses[2]);
  EXPECT_EQ(losses[0], losses[3]);
}

}  // namespace
}  // namespace unishard::test
