// Frozen parameters at stage 3: sharded between uses, gathered with their unit, and the same in
// every checkpoint.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/partition.hpp"
#include "unishard/trainer/construction.hpp"
#include "unishard/trainer/engine.hpp"
#include "unishard/trainer/trace.hpp"

#include "adapted_model.hpp"
#include "expect.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/remainder.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>

namespace unishard::test {
namespace {

using namespace trainer;
using Bits = std::map<std::string, std::string>;  ///< type and bytes of each parameter

constexpr std::int64_t kContext = 12;

/// Returns the parameters of a model, which must have values.
Bits bits_now(const torch::nn::Module& model) {
  Bits bits;
  for (const auto& each : model.named_parameters()) {
    const at::Tensor values = each.value().detach().contiguous();
    bits[each.key()] = c10::toString(values.scalar_type()) + std::string(" ");
    if (values.numel() > 0)
      bits[each.key()].append(static_cast<const char*>(values.data_ptr()), values.nbytes());
  }
  return bits;
}

/// Returns the parameters of a model. Collective.
Bits bits_of(Engine& engine, const torch::nn::Module& model) {
  const GatheredScope gathered(engine);
  return bits_now(model);
}

Config adapted_config(std::uint32_t stage, DType compute = DType::Float32) {
  Config config = small_config(stage, compute);
  config.batch = {.train = 6, .micro = 1, .accumulation = {}};
  config.canonical_order = true;
  return config;
}

/// No unit is gathered ahead or kept.
Config one_unit_at_a_time(std::uint32_t stage = 3) {
  Config config = adapted_config(stage);
  config.zero.prefetch_bucket_size = config.zero.max_reuse_distance = 0;
  return config;
}

template <class Model = AdaptedModel, class... Args>
Model build_model(const Placement& placement, const Args&... args) {
  const std::lock_guard lock(construction_mutex());
  const ConstructionScope scope(placement);
  return Model(args...);
}

StepStats train_step(Engine& engine, AdaptedModel& model) {
  return engine.train_batch([&](const MicroBatch& batch) {
    const auto first = static_cast<std::int64_t>(batch.first_sample);
    const at::Tensor tokens = at::arange(first, first + kContext + 1) * 7;
    return model->loss(tokens.reshape({1, kContext + 1}).remainder(60));
  });
}

using Body = std::function<void(Engine&, AdaptedModel&, Communicator&)>;

/// Runs `world` ranks as threads, whose models are constructed unit by unit.
void with_adapted(std::uint32_t world, const Config& config, const AdaptedSizes& sizes,
                  const Body& body) {
  run_threads(world, [&](Communicator& communicator) {
    AdaptedModel model = build_model(placement_for(config, communicator), sizes);
    Engine engine(model.ptr(), communicator, config);
    body(engine, model, communicator);
  });
}

void with_adapted(std::uint32_t world, const Config& config, const Body& body) {
  with_adapted(world, config, {}, body);
}

/// Returns the bytes of the whole trained or frozen parameters. The head shares the embedding's.
std::int64_t bytes_of(const torch::nn::Module& model, bool trained) {
  std::int64_t bytes = 0;
  for (const auto& each : model.named_parameters()) {
    const at::Tensor& tensor = each.value();
    if (tensor.requires_grad() == trained && each.key() != "head.weight")
      bytes += tensor.numel() * static_cast<std::int64_t>(tensor.itemsize());
  }
  return bytes;
}

struct Trained {
  std::vector<double> numbers;  ///< losses and norms
  Bits bits;
  bool operator==(const Trained&) const = default;
};

/// Returns what rank 0 sees of three steps.
Trained train(std::uint32_t world, const Config& config, bool recompute = false) {
  Trained result;
  with_adapted(world, config, [&](Engine& engine, AdaptedModel& model, Communicator& group) {
    if (recompute) model->recompute_blocks({});
    std::vector<double> numbers;
    for (int i = 0; i < 3; ++i) {
      const StepStats stats = train_step(engine, model);
      numbers.insert(numbers.end(), {stats.loss, stats.gradient_norm});
    }
    Bits bits = bits_of(engine, *model);
    if (group.rank() == 0) result = {std::move(numbers), std::move(bits)};
  });
  return result;
}

class FrozenBits : public testing::TestWithParam<DType> {};

TEST_P(FrozenBits, AreTheSameOnEveryWorldSizeAndStage) {
  const Trained expected = train(1, adapted_config(0, GetParam()));
  EXPECT_NE(expected.numbers[0], expected.numbers[2]) << "the adapters learn";
  for (std::uint32_t stage = 0; stage <= 3; ++stage) {
    for (const std::uint32_t world : {1u, 2u, 3u, 5u})
      EXPECT_EQ(train(world, adapted_config(stage, GetParam())), expected)
          << "stage " << stage << " W " << world;
  }
}

INSTANTIATE_TEST_SUITE_P(Compute, FrozenBits,
                         testing::Values(DType::Float32, DType::BFloat16, DType::Float16),
                         [](const auto& row) { return std::string(name_of(row.param)); });

TEST(Frozen, RecomputationChangesNoBit) {
  for (const std::uint32_t world : {1u, 2u}) {
    const Config config = one_unit_at_a_time();
    EXPECT_EQ(train(world, config, true), train(world, config, false)) << world;
  }
}

struct ManyTypesImpl : torch::nn::Module {
  explicit ManyTypesImpl(at::ScalarType floating) {
    at::Tensor values = torch::randn({5000});
    values[0] = -0.0F;
    values[1] = std::bit_cast<float>(0x7FC12345U);  // NaN with a payload
    values[4999] = std::numeric_limits<float>::infinity();
    add("floats", values.to(floating));
    add("doubles", torch::randn({30, 50}, at::kDouble));
    for (const at::ScalarType type : {at::kChar, at::kByte, at::kShort, at::kInt, at::kLong})
      add(c10::toString(type), torch::randint(0, 127, {33, 100}, type));
    add("bools", torch::randint(0, 2, {7000}, at::kBool));
    add("complex", torch::randn({1500}, at::kComplexFloat));
    add("scalar", torch::full({}, 7, at::kLong));
    add("nothing", torch::ones({0, 3}));
    add("not_contiguous", torch::randn({40, 60}).t());
  }
  void add(const std::string& name, const at::Tensor& values) {
    register_parameter(name, values, /*requires_grad=*/false);
  }
};

struct ManyTypesModelImpl : torch::nn::Module {
  explicit ManyTypesModelImpl(at::ScalarType floating) {
    unit = register_module("unit", Sharded<ManyTypesImpl>(floating));
    outside = register_module("outside", std::make_shared<ManyTypesImpl>(floating));
  }
  Sharded<ManyTypesImpl> unit{nullptr};
  std::shared_ptr<ManyTypesImpl> outside;
};
TORCH_MODULE(ManyTypesModel);

/// Returns what rank 0 sees of a model that is only constructed.
Bits construct_many_types(std::uint32_t world, std::uint32_t stage, DType compute) {
  Bits bits;
  run_threads(world, [&](Communicator& communicator) {
    const Config config = small_config(stage, compute);
    const at::ScalarType floating = compute == DType::Float32 ? at::kFloat : at::kBFloat16;
    ManyTypesModel model =
        build_model<ManyTypesModel>(placement_for(config, communicator), floating);
    Engine engine(model.ptr(), communicator, config);
    EXPECT_EQ(engine.memory().master + engine.memory().optimizer + engine.memory().gradients, 0);
    if (stage == 3) {
      EXPECT_EQ(engine.memory().parameters, 0);
      EXPECT_EQ(model->unit->parameters()[0].storage().nbytes(), 0u);
    }
    Bits own = bits_of(engine, *model);
    if (communicator.rank() == 0) bits = std::move(own);
  });
  return bits;
}

TEST(Frozen, WeightsOfEveryTypeKeepTheirBits) {
  for (const DType compute : {DType::Float32, DType::BFloat16}) {
    const Bits expected = construct_many_types(1, 0, compute);
    EXPECT_EQ(expected.size(), 24u);
    EXPECT_TRUE(expected.at("unit.Char").starts_with("Char "));
    for (const std::uint32_t world : {1u, 2u, 3u, 4u, 7u})
      EXPECT_EQ(construct_many_types(world, 3, compute), expected) << world;
  }
}

TEST(Frozen, MemoryOfARankIsItsShareOfTheBaseAndTheGatheredUnits) {
  const AdaptedSizes sizes{.vocabulary = 8192, .width = 768, .adapter = 8, .blocks = 6};
  for (const std::uint32_t world : {1u, 2u, 4u}) {
    with_adapted(world, one_unit_at_a_time(), sizes,
                 [&](Engine& engine, AdaptedModel& model, Communicator& group) {
                   const std::int64_t base = bytes_of(*model, false);
                   const MemoryReport constructed = engine.memory();
                   engine.reset_memory_peak();
                   train_step(engine, model);
                   const MemoryReport memory = engine.memory();
                   EXPECT_EQ(memory.parameters, 0);
                   // Each vector of a unit and type is padded to 1024 elements on each rank.
                   const std::int64_t padding = (2 * 2 * sizes.blocks + 1) * 1024 * 4;
                   EXPECT_GE(memory.frozen * world, base);
                   EXPECT_LE(memory.frozen, base / world + padding);
                   const std::int64_t trained = bytes_of(*model, true);
                   EXPECT_LE(memory.master, trained / world + padding);
                   EXPECT_EQ(memory.optimizer, 2 * memory.master);
                   const std::int64_t root = sizes.vocabulary * sizes.width * 4 + 65536;
                   const std::int64_t unit = sizes.width * sizes.width * 5 + 65536;
                   EXPECT_LE(memory.parameters_peak, root + 2 * unit);
                   // A unit stands once as it was made, once as a flat tensor; then the root does.
                   EXPECT_LE(constructed.parameters_peak, 2 * root);
                   if (group.rank() != 0) return;
                   fmt::print("W={}: base {} bytes, frozen {} per rank, peak of gathered {}\n",
                              world, base, memory.frozen, memory.parameters_peak);
                 });
  }
}

TEST(Frozen, BelowStage3EveryRankHasThemWhole) {
  for (const std::uint32_t stage : {0u, 1u, 2u}) {
    with_adapted(2, adapted_config(stage), [&](Engine& engine, AdaptedModel& model, auto&) {
      EXPECT_EQ(engine.memory().frozen, bytes_of(*model, false));
      EXPECT_GT(model->frozen[0]->up->weight.storage().nbytes(), 0u);
    });
  }
}

TEST(Frozen, ConstructionHoldsOneUnit) {
  const auto single = make_single_communicator();
  const auto peak = [&](int blocks) {
    const Config config = one_unit_at_a_time();
    AdaptedModel model =
        build_model(placement_for(config, *single), AdaptedSizes{.blocks = blocks});
    for (const auto& unit : model->frozen)
      EXPECT_EQ(unit->up->weight.storage().nbytes(), 0u) << "sharded when it was constructed";
    Engine engine(model.ptr(), *single, config);
    return engine.memory().parameters_peak;
  };
  EXPECT_EQ(peak(1), peak(12));
}

std::size_t count_spans(const Trace& trace, const std::string& name) {
  const auto spans = trace.spans();
  return static_cast<std::size_t>(
      std::ranges::count(spans, name, [](const Trace::Span& span) { return span.name; }));
}

TEST(Frozen, AFrozenUnitIsGatheredAgainOnlyWhenItsInputHasAGradient) {
  const auto single = make_single_communicator();
  Config config = one_unit_at_a_time();
  config.batch.train = 1;
  Trace trace;
  const auto runtime = make_host_runtime({.trace = &trace});
  AdaptedModel model = build_model(placement_for(config, *single));
  Engine engine(model.ptr(), *single, config, {.runtime = runtime.get()});
  train_step(engine, model);
  EXPECT_EQ(count_spans(trace, "gather unit frozen0"), 1u) << "its input needs no gradient";
  EXPECT_EQ(count_spans(trace, "gather unit adapted0"), 2u);
  EXPECT_EQ(count_spans(trace, "gather unit frozen1"), 2u) << "gradients pass through it";
  EXPECT_EQ(count_spans(trace, "reduce unit frozen1"), 0u);
  EXPECT_EQ(count_spans(trace, "update unit frozen1"), 0u);
  EXPECT_EQ(count_spans(trace, "reduce unit adapted0"), 1u);
}

TEST(Frozen, UnitsAreReleasedDuringTheBackwardPass) {
  const auto single = make_single_communicator();
  const Config config = one_unit_at_a_time();
  AdaptedModel model = build_model(placement_for(config, *single), AdaptedSizes{.blocks = 8});
  Engine engine(model.ptr(), *single, config);
  engine.reset_memory_peak();
  train_step(engine, model);
  const std::int64_t peak = engine.memory().parameters_peak;
  EXPECT_EQ(engine.memory().parameters, 0);
  const GatheredScope all(engine);
  EXPECT_LT(peak, engine.memory().parameters / 3);
}

TEST(Frozen, AnExceptionReleasesThem) {
  with_adapted(2, adapted_config(3), [&](Engine& engine, AdaptedModel& model, auto&) {
    const Bits before = bits_of(engine, *model);
    for (const bool in_backward : {false, true}) {
      EXPECT_THROW(engine.train_batch([&](const MicroBatch&) -> at::Tensor {
        const at::Tensor loss = model->loss(at::arange(kContext + 1).reshape({1, -1}));
        if (!in_backward) throw std::runtime_error("no data");
        model->adapted[0]->adapter_in->weight.register_hook(
            [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("broken"); });
        const at::Tensor last = loss * 1.0;
        last.register_hook(
            [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("broken"); });
        return last * 1.0;
      }),
                   std::runtime_error);
      EXPECT_EQ(engine.memory().parameters, 0);
      EXPECT_EQ(bits_of(engine, *model), before);
    }
  });
}

/// Returns how often frozen1 was gathered in the second of two steps.
std::size_t gathers_of_frozen1(const std::function<void(ZeroLimits&)>& change) {
  const auto single = make_single_communicator();
  Config config = one_unit_at_a_time();
  config.batch.train = 1;
  change(config.zero);
  Trace trace;
  const auto runtime = make_host_runtime({.trace = &trace});
  AdaptedModel model = build_model(placement_for(config, *single));
  Engine engine(model.ptr(), *single, config, {.runtime = runtime.get()});
  train_step(engine, model);
  const std::size_t before = count_spans(trace, "gather unit frozen1");
  train_step(engine, model);
  return count_spans(trace, "gather unit frozen1") - before;
}

// frozen1 has 40 norms and biases each, 40 scales and 40 * 40 weights in float32, padded to 2048
// elements, and 1600 in int8, padded to 2048; adapted1 has 2048 frozen and 1024 trained ones.
TEST(Frozen, LimitsCountThem) {
  const auto with_reuse = [](std::int64_t elements) {
    return gathers_of_frozen1([&](ZeroLimits& zero) { zero.max_reuse_distance = elements; });
  };
  EXPECT_EQ(with_reuse(2 * 3072 - 1), 2u);
  EXPECT_EQ(with_reuse(2 * 3072), 1u);
  const auto with_threshold = [](std::int64_t elements) {
    return gathers_of_frozen1(
        [&](ZeroLimits& zero) { zero.param_persistence_threshold = elements; });
  };
  EXPECT_EQ(with_threshold(4095), 2u);
  EXPECT_EQ(with_threshold(4096), 0u) << "it stays gathered";
}

TEST(Frozen, NoLimitChangesTheResult) {
  const Trained expected = train(2, one_unit_at_a_time());
  for (const std::int64_t elements : {1024, 4096, 6000, 1'000'000}) {
    Config config = one_unit_at_a_time();
    config.zero.prefetch_bucket_size = elements;
    config.zero.max_reuse_distance = elements;
    config.zero.max_live_parameters = 3 * elements;
    EXPECT_EQ(train(2, config), expected) << elements;
    config.zero.param_persistence_threshold = elements;
    EXPECT_EQ(train(2, config), expected) << elements;
  }
}

TEST(Frozen, PersistentUnitsHaveTheValuesOfTheCheckpointThatWasLoaded) {
  const TempDir folder;
  Bits saved;
  with_adapted(2, adapted_config(3), [&](Engine& engine, AdaptedModel& model, auto& group) {
    engine.save_checkpoint({.folder = folder.path()});
    Bits bits = bits_of(engine, *model);
    if (group.rank() == 0) saved = std::move(bits);
  });
  Config config = adapted_config(3);
  config.seed = 5;
  config.zero.param_persistence_threshold = 1 << 30;
  with_adapted(2, config, [&](Engine& engine, AdaptedModel& model, auto&) {
    EXPECT_NE(bits_of(engine, *model), saved);
    engine.load_checkpoint(folder.path());
    EXPECT_EQ(bits_of(engine, *model), saved);
  });
}

TEST(Frozen, AGatheredScopeReadsThemAndWritesThemBack) {
  for (const std::uint32_t stage : {2u, 3u}) {
    const TempDir folder;
    with_adapted(3, adapted_config(stage), [&](Engine& engine, AdaptedModel& model, auto& group) {
      {
        GatheredScope scope(engine, {"frozen1.down.weight", "head.weight"});
        const at::NoGradGuard no_grad;
        if (group.rank() == 1) {
          model->frozen[1]->down->weight.fill_(3);
          model->embedding->weight.mul_(2);
        }
        scope.write_back(1);
      }
      const Bits written = bits_of(engine, *model);
      EXPECT_EQ(written.at("frozen1.down.weight"), "Char " + std::string(40 * 40, '\3'));
      engine.save_checkpoint({.folder = folder.path(), .tag = "t"});
      train_step(engine, model);
      EXPECT_EQ(bits_of(engine, *model).at("embedding.weight"), written.at("embedding.weight"));
      engine.load_checkpoint(folder.path());
      EXPECT_EQ(bits_of(engine, *model), written);
    });
  }
}

TEST(Frozen, TheNextEngineOfTheModelHasThem) {
  run_threads(2, [&](Communicator& communicator) {
    const Config config = adapted_config(3);
    AdaptedModel model = build_model(placement_for(config, communicator));
    Bits before;
    {
      Engine engine(model.ptr(), communicator, config);
      train_step(engine, model);
      before = bits_of(engine, *model);
    }
    Engine engine(model.ptr(), communicator, config);
    EXPECT_EQ(bits_of(engine, *model), before);
    EXPECT_GT(train_step(engine, model).gradient_norm, 0);
  });
}

TEST(Frozen, InitialValuesThatDifferAreAnErrorOnEveryRank) {
  for (const bool in_scope : {false, true}) {
    run_threads(2, [&](Communicator& communicator) {
      const Config config = adapted_config(3);
      const AdaptedSizes sizes{.shift = communicator.rank() == 1 ? 0.5 : 0.0};
      const auto model = [&] {
        if (in_scope) return build_model(placement_for(config, communicator), sizes);
        const std::lock_guard lock(construction_mutex());
        torch::manual_seed(3);
        return AdaptedModel(sizes);
      }();
      EXPECT_THAT(error_of([&] { Engine(model.ptr(), communicator, config); }),
                  Fails(ErrorCode::Mismatch,
                        "rank 1 differs from rank 0: it has \"parameter frozen0.up.bias: Float "
                        "[40], values "));
    });
  }
}

struct SharesImpl : torch::nn::Module {
  explicit SharesImpl(const at::Tensor& shared)
      : own(register_parameter("own", torch::ones({kWidth}))),
        weight(register_parameter("weight", shared, /*requires_grad=*/false)) {}
  at::Tensor forward(const at::Tensor& x) { return x * own * weight; }
  at::Tensor own, weight;
};

struct SharingModelImpl : torch::nn::Module {
  SharingModelImpl() {
    const at::Tensor shared = torch::full({kWidth}, 0.5);
    first = register_module("first", Sharded<SharesImpl>(shared));
    second = register_module("second", Sharded<SharesImpl>(shared));
  }
  Sharded<SharesImpl> first{nullptr}, second{nullptr};
};
TORCH_MODULE(SharingModel);

TEST(Frozen, AtStage3UnitsMustNotShareThem) {
  const auto single = make_single_communicator();
  SharingModel whole;
  EXPECT_THAT(error_of([&] { Engine(whole.ptr(), *single, small_config(3)); }),
              Fails(ErrorCode::InvalidArgument,
                    "parameter \"second.weight\" of a unit is shared with \"first.weight\""));
  EXPECT_THAT(error_of([&] { build_model<SharingModel>(placement_for(small_config(3), *single)); }),
              Fails(ErrorCode::InvalidArgument, "parameter \"weight\""));
  const TempDir folder;
  Engine engine(whole.ptr(), *single, small_config(2));
  engine.train_batch([&](const MicroBatch&) {
    return whole->second(whole->first(at::ones({kWidth}))).pow(2).mean();
  });
  EXPECT_NO_THROW(engine.save_checkpoint({.folder = folder.path()}));
  EXPECT_NO_THROW(engine.load_checkpoint(folder.path()));
}

TEST(Frozen, WhatIsFrozenMustNotChangeAfterConstruction) {
  const auto single = make_single_communicator();
  const Config config = adapted_config(3);
  for (const bool trains : {true, false}) {
    AdaptedModel model = build_model(placement_for(config, *single));
    const at::Tensor& parameter =
        trains ? model->frozen[1]->up->weight : model->adapted[1]->adapter_in->weight;
    parameter.requires_grad_(trains);
    EXPECT_THAT(error_of([&] { Engine(model.ptr(), *single, config); }),
                Fails(ErrorCode::InvalidArgument, "its parameters changed"));
  }
}

/// Saves a new run's first step; returns the identity.
std::string save_first_step(const Path& folder, std::uint32_t world, const Config& config) {
  std::string identity;
  with_adapted(world, config, [&](Engine& engine, AdaptedModel& model, auto& group) {
    train_step(engine, model);
    const auto report = engine.save_checkpoint({.folder = folder, .tag = "t"}).wait();
    if (group.rank() == 0) identity = report.identity;
  });
  return identity;
}

TEST(FrozenCheckpoint, HasTheSameIdentityAndValuesAtEveryStage) {
  for (const DType compute : {DType::Float32, DType::BFloat16, DType::Float16}) {
    const TempDir folder;
    const std::string whole = save_first_step(folder.path() / "0", 1, adapted_config(0, compute));
    for (const std::uint32_t world : {1u, 2u, 4u}) {
      const Path sharded = folder.path() / fmt::format("3-{}", world);
      EXPECT_EQ(save_first_step(sharded, world, adapted_config(3, compute)), whole);
      for (const auto& [stage, from] : {std::pair{3u, folder.path() / "0"}, {0u, sharded}}) {
        Config config = adapted_config(stage, compute);
        config.seed = 5;  // other initial values, so that what is equal was loaded
        with_adapted(3, config, [&](Engine& engine, AdaptedModel&, auto& group) {
          engine.load_checkpoint(from);
          const Path again = from / "again" / std::to_string(world);
          const auto report = engine.save_checkpoint({.folder = again}).wait();
          if (group.rank() == 0) {
            EXPECT_EQ(report.identity, whole) << name_of(compute);
          }
        });
      }
    }
  }
}

TEST(FrozenCheckpoint, ARankSavesItsShardAsAReshardingWould) {
  const TempDir folder;
  save_first_step(folder.path() / "whole", 1, adapted_config(0));
  save_first_step(folder.path() / "sharded", 3, adapted_config(3));
  const auto catalog_of = [&](const char* name) {
    return CheckpointReader(posix_storage(), folder.path() / name / "t").catalog();
  };
  Catalog whole = catalog_of("whole");
  const Catalog sharded = catalog_of("sharded");
  EXPECT_EQ(whole.units, sharded.units);
  whole.world_size = sharded.world_size;
  whole.stage = sharded.stage;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto fragments = plan_shard(sharded, rank);
    EXPECT_EQ(plan_shard(whole, rank), fragments);
    const auto is_of = [&](const char* fqn) {
      return std::ranges::any_of(fragments, [&](const Fragment& fragment) {
        return sharded.tensors[fragment.tensor].fqn == fqn;
      });
    };
    EXPECT_EQ(is_of("frozen1.down.weight"), rank < 2) << "1600 elements, 1024 for each rank";
    EXPECT_EQ(is_of("embedding.weight"), true) << "2560 elements";
  }
  for (const char* fqn : {"frozen1.down.weight", "embedding.weight"}) {
    const auto tensor = sharded.find(fqn, state::kWeights);
    ASSERT_TRUE(tensor) << fqn;
    EXPECT_TRUE(sharded.tensors[*tensor].frozen);
    EXPECT_FALSE(sharded.find(fqn, state::kFp32));
  }
}

TEST(FrozenCheckpoint, AnIncrementalSaveWritesThemOnce) {
  for (const bool asynchronous : {false, true}) {
    const TempDir folder;
    std::uint64_t frozen_bytes = 0;
    with_adapted(2, adapted_config(3), [&](Engine& engine, AdaptedModel& model, auto& group) {
      for (const char* tag : {"first", "second"}) {
        train_step(engine, model);
        engine
            .save_checkpoint({.folder = folder.path(),
                              .tag = tag,
                              .asynchronous = asynchronous,
                              .incremental = true})
            .wait();
      }
      if (group.rank() == 0) frozen_bytes = static_cast<std::uint64_t>(bytes_of(*model, false));
    });
    const CheckpointReader second(posix_storage(), folder.path() / "second");
    std::uint64_t shared = 0;
    for (const auto& shard : second.shards()) shared += shard->shared_payload_bytes();
    EXPECT_GE(shared, frozen_bytes);
  }
}

}  // namespace
}  // namespace unishard::test
