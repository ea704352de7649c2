// Muon: matrices are made orthogonal as wholes, and the other parameters are Adam's.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"

#include "engine/newton_schulz.hpp"
#include "expect.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cmath>

namespace unishard::test {
namespace {

using namespace trainer;
using detail::newton_schulz;
using testing::HasSubstr;

at::Tensor matrix(std::int64_t rows, std::int64_t columns) {
  const at::Tensor values = at::arange(rows * columns, at::kFloat);
  return (values * values * 0.37).sin().view({rows, columns});
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

Config muon_config(std::uint32_t stage, DType compute = DType::Float32) {
  Config config = small_config(stage, compute);
  config.optimizer = "Muon";
  config.adam = config.hyper;
  config.hyper.momentum = 0.95;
  config.canonical_order = true;
  return config;
}

TEST(NewtonSchulz, HasSingularValuesNearOne) {
  for (const NewtonSchulz method : {NewtonSchulz::Gram, NewtonSchulz::Standard}) {
    for (const auto& [rows, columns] : {std::pair{12, 30}, {16, 16}, {1, 9}}) {
      const at::Tensor values = at::linalg_svdvals(newton_schulz(matrix(rows, columns), method));
      EXPECT_GT(values.min().item<double>(), 0.5) << rows;
      EXPECT_LT(values.max().item<double>(), 1.3) << rows;
    }
  }
}

TEST(NewtonSchulz, DoesNotDependOnTheScaleOfTheGradients) {
  const at::Tensor wide = matrix(8, 20);
  const at::Tensor expected = newton_schulz(wide, NewtonSchulz::Gram);
  EXPECT_LT(largest_difference(newton_schulz(wide * 4096, NewtonSchulz::Gram), expected), 1e-4);
  const at::Tensor zeros = at::zeros({3, 5});
  EXPECT_TRUE(at::equal(newton_schulz(zeros, NewtonSchulz::Gram), zeros));
}

TEST(NewtonSchulz, MultipliesTallMatricesByTheRootOfTheirRatio) {
  const at::Tensor wide = matrix(5, 20);
  const at::Tensor tall = newton_schulz(wide.t().contiguous(), NewtonSchulz::Gram);
  EXPECT_LT(largest_difference(tall, newton_schulz(wide, NewtonSchulz::Gram).t() * 2), 1e-5);
}

TEST(NewtonSchulz, TakesTheFiltersOfAConvolutionAsRows) {
  const at::Tensor filters = matrix(6, 12).view({6, 3, 2, 2});
  const at::Tensor update = newton_schulz(filters, NewtonSchulz::Gram);
  EXPECT_EQ(update.sizes(), filters.sizes());
  EXPECT_TRUE(at::equal(update.view({6, 12}), newton_schulz(matrix(6, 12), NewtonSchulz::Gram)));
}

/// Returns the weights after one step on one rank, and before it.
std::pair<Parameters, Parameters> one_step(const Config& config) {
  std::pair<Parameters, Parameters> result;
  with_engine(1, config, {}, [&](Engine& engine, SmallModel& model, Communicator&) {
    result.second = parameters_of(engine, model);
    step(engine, model);
    result.first = parameters_of(engine, model);
  });
  return result;
}

/// The momentum of the first step is a multiple of the gradient.
TEST(Muon, SubtractsTheOrthogonalGradient) {
  Config plain = small_config(0);
  plain.optimizer = "SGD";
  plain.hyper = {.lr = 1};
  plain.gradient_clipping = 0;
  const auto [moved, start] = one_step(plain);
  Config config = muon_config(0);
  config.gradient_clipping = 0;
  config.hyper.weight_decay = 0.5;
  const Parameters after = one_step(config).first;
  for (const std::string name : {"block0.up.weight", "block1.inner.linear.weight"}) {
    const at::Tensor gradient = start.at(name) - moved.at(name);
    const at::Tensor expected =
        start.at(name) * (1 - 1e-2 * 0.5) - 1e-2 * newton_schulz(gradient, NewtonSchulz::Gram);
    EXPECT_LT(largest_difference(after.at(name), expected), 1e-4) << name;
  }
}

TEST(Muon, LeavesTheOtherParametersToAdam) {
  Config config = muon_config(0);
  Config adam = small_config(0);
  config.gradient_clipping = adam.gradient_clipping = 0;
  adam.canonical_order = true;
  const Parameters ours = one_step(config).first, adams = one_step(adam).first;
  for (const char* name : {"block0.norm.weight", "block0.up.bias", "in.bias"})
    EXPECT_TRUE(at::equal(ours.at(name), adams.at(name))) << name;
  EXPECT_FALSE(at::equal(ours.at("in.weight"), adams.at("in.weight")));
}

/// The norm is that of the orthogonal updates, which are about as long as the root of their ranks.
TEST(Muon, ClipsByTheNormOfTheUpdates) {
  Config config = muon_config(0);
  with_engine(1, config, {}, [](Engine& engine, SmallModel& model, Communicator&) {
    const double norm = step(engine, model).gradient_norm;
    EXPECT_GT(norm, 3);
    EXPECT_LT(norm, 1.3 * std::sqrt((8 + 6 * 40) * 5.0));
  });
}

class MuonPlaces : public testing::TestWithParam<DType> {};

/// Losses and norms of four steps, and the weights after them.
Ran train_muon(std::uint32_t world, const Config& config) {
  Ran ran;
  with_engine(world, config, {}, [&](Engine& engine, SmallModel& model, Communicator& group) {
    std::vector<double> numbers;
    for (int i = 0; i < 4; ++i) {
      const StepStats stats = step(engine, model);
      numbers.insert(numbers.end(), {stats.loss, stats.gradient_norm});
    }
    const Parameters parameters = parameters_of(engine, model);
    if (group.rank() == 0) ran = {numbers, parameters};
  });
  return ran;
}

TEST_P(MuonPlaces, HasTheSameBitsForEveryWorldSizeAndStage) {
  const Ran expected = train_muon(1, muon_config(0, GetParam()));
  for (const auto& [world, stage] : {std::pair{2u, 0u}, {3u, 1u}, {2u, 2u}, {1u, 3u}, {6u, 3u}}) {
    SCOPED_TRACE("world size " + std::to_string(world) + " stage " + std::to_string(stage));
    expect_same(train_muon(world, muon_config(stage, GetParam())), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MuonPlaces,
                         testing::Values(DType::Float32, DType::BFloat16, DType::Float16),
                         [](const auto& each) { return std::string(name_of(each.param)); });

TEST(Muon, SavesTheStatesThatEachParameterHas) {
  const TempDir folder;
  with_engine(2, muon_config(2), {}, [&](Engine& engine, SmallModel& model, Communicator&) {
    step(engine, model);
    engine.save_checkpoint({.folder = folder.path(), .tag = "t"}).wait();
  });
  const auto checkpoint = open_checkpoint(posix_storage(), folder.path(), {});
  const Catalog& catalog = checkpoint->catalog();
  EXPECT_TRUE(catalog.find("block0.up.weight", "momentum_buffer"));
  EXPECT_FALSE(catalog.find("block0.up.weight", "exp_avg"));
  EXPECT_TRUE(catalog.find("block0.up.bias", "exp_avg_sq"));
  EXPECT_FALSE(catalog.find("block0.up.bias", "momentum_buffer"));
  EXPECT_EQ(catalog.groups[0]["use_muon"], true);
  EXPECT_EQ(catalog.groups[0]["ns_method"], "gram");
  EXPECT_EQ(catalog.groups[1]["optimizer"], "AdamW");
}

TEST(Muon, RefusesAGroupWithAVector) {
  Config config = muon_config(0);
  Hyper hyper = config.hyper;
  hyper.use_muon = true;
  const Error error = error_of([&] {
    with_engine(1, config, {.groups = {{"all", hyper}}}, [](auto&&...) {});
  });
  EXPECT_THAT(error, Fails(ErrorCode::InvalidArgument, HasSubstr("in group \"all\" of Muon"),
                           HasSubstr("without use_muon")));
}

}  // namespace
}  // namespace unishard::test
