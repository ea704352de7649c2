#include "engine/micro_batches.hpp"

#include "unishard/trainer/seeds.hpp"

#include "state/generator_scope.hpp"

#include <ATen/ops/stack.h>

#include <ranges>

namespace unishard::trainer::detail {
namespace {

/// Stands for the default generator where units have their numbers.
constexpr std::uint64_t kDefaultGenerator = ~std::uint64_t{0};

/// Waits for the device.
std::vector<double> values_of(const std::vector<at::Tensor>& scalars) {
  const at::Tensor all = at::stack(scalars).to(at::kCPU, at::kDouble).contiguous();
  const double* const begin = all.data_ptr<double>();
  return {begin, begin + all.numel()};
}

}  // namespace

MicroBatches::MicroBatches(TrainingState& state, StepContext& context, GatherSchedule& schedule,
                           Communicator& communicator)
    : state_(state), context_(context), schedule_(schedule), communicator_(communicator) {}

std::vector<double> MicroBatches::run(const LossFunction& loss, Pass pass, std::int64_t count) {
  const std::int64_t ranks = communicator_.size();
  context_.seed = state_.seed;
  context_.step = state_.step;
  std::vector<at::Tensor> losses;
  for (std::int64_t first = 0; first < count; first += ranks) {
    const std::int64_t id = first + communicator_.rank();
    const bool counts = id < count;
    context_.micro_batch = counts ? id : 0;
    for (const UnitRecord& unit : state_.model.units)
      unit.flat->begin_backward(counts, first + ranks >= count);
    const std::uint64_t base = pass == Pass::Train ? state_.samples : 0;
    const MicroBatch batch{.step = state_.step,
                           .id = context_.micro_batch,
                           .first_sample = base + static_cast<std::uint64_t>(context_.micro_batch *
                                                                             state_.batch.micro),
                           .samples = state_.batch.micro};
    try {
      losses.push_back(run_one(loss, pass, batch, 1.0 / static_cast<double>(count)));
    } catch (...) {
      for (const UnitRecord& unit : state_.model.units) unit.flat->abandon();
      throw;
    }
  }
  return in_order(losses, count);
}

at::Tensor MicroBatches::run_one(const LossFunction& loss, Pass pass, const MicroBatch& batch,
                                 double scale) {
  const GeneratorScope generator_scope(
      dropout_seed(context_.seed, context_.step, context_.micro_batch, kDefaultGenerator));
  const DropoutScope dropout_scope(context_, 0);
  schedule_.begin(pass);
  if (state_.model.root) schedule_.acquire(*state_.model.root);
  const at::Tensor value = loss(batch);
  if (pass == Pass::Train) {
    const auto mark = context_.runtime->mark(Stream::Compute, "backward");
    (value * scale).backward();
  }
  schedule_.end();
  for (const UnitRecord& unit : std::views::reverse(state_.model.units)) {
    if (pass == Pass::Train) unit.flat->finish_backward();
    unit.flat->release();
  }
  return value.detach();
}

std::vector<double> MicroBatches::in_order(const std::vector<at::Tensor>& mine,
                                           std::int64_t count) {
  const std::vector<double> all = gather_doubles(communicator_, values_of(mine));
  const auto ranks = static_cast<std::int64_t>(communicator_.size());
  const auto rounds = static_cast<std::int64_t>(mine.size());
  std::vector<double> losses;
  for (std::int64_t id = 0; id < count; ++id)
    losses.push_back(all[static_cast<std::size_t>(id % ranks * rounds + id / ranks)]);
  return losses;
}

}  // namespace unishard::trainer::detail
