#include "engine/micro_batches.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/seeds.hpp"

#include "engine/deterministic_scope.hpp"

#include <ATen/ops/stack.h>

#include <ranges>
#include <string>
#include <utility>

namespace unishard::trainer::detail {
namespace {

/// Stands for the default generator where units have their numbers.
constexpr std::uint64_t kDefaultGenerator = ~std::uint64_t{0};

}  // namespace

MicroBatches::Current::Current(const StepContext& context, const MicroBatch& batch)
    : generator(context.runtime->device(),
                dropout_seed(context.seed, batch.step, batch.id, kDefaultGenerator)),
      dropout(context, 0) {}

MicroBatches::MicroBatches(TrainingState& state, StepContext& context, GatherSchedule& schedule,
                           Communicator& communicator)
    : state_(state), context_(context), schedule_(schedule), communicator_(communicator) {}

void MicroBatches::begin(Pass pass, std::int64_t count) {
  if (has_begun()) {
    raise(ErrorCode::InvalidArgument, "a step has begun and has not ended",
          "call forward, backward and step until the step is done");
  }
  pass_ = pass;
  count_ = count;
  first_ = 0;
  losses_.clear();
  context_.seed = state_.seed;
  context_.step = state_.step;
}

MicroBatch MicroBatches::next() const {
  const std::int64_t mine = first_ + communicator_.rank();
  const std::int64_t id = mine < count_ ? mine : 0;
  const std::uint64_t base = pass_ == Pass::Train ? state_.samples : 0;
  return {.step = state_.step,
          .id = id,
          .first_sample = base + static_cast<std::uint64_t>(id * state_.batch.micro),
          .samples = state_.batch.micro};
}

void MicroBatches::require_done(const char* what) const {
  if (has_begun() && !current_) return;
  raise(ErrorCode::InvalidArgument,
        std::string(what) + (has_begun() ? ": the last forward has had no backward pass"
                                         : ": there was no forward"),
        "call forward, backward and step for each micro-batch");
}

template <class Body>
auto MicroBatches::guarded(Body&& body) {
  try {
    const DeterministicScope scope(context_.runtime->device(), state_.config.is_deterministic());
    return body();
  } catch (const c10::Error& error) {
    abandon();
    require_deterministic(error);
    throw;
  } catch (...) {
    abandon();
    throw;
  }
}

at::Tensor MicroBatches::forward(const LossFunction& loss) {
  if (current_) {
    raise(ErrorCode::InvalidArgument, "forward: the last micro-batch has had no backward pass",
          "call backward once after each forward");
  }
  return guarded([&] {
    const MicroBatch batch = next();
    const bool counts = first_ + communicator_.rank() < count_;
    context_.micro_batch = batch.id;
    for (const UnitRecord& unit : state_.model.units) unit.flat->begin_backward(counts, is_last());
    current_.emplace(context_, batch);
    schedule_.begin(pass_);
    acquire_root();
    at::Tensor value = loss(batch);
    if (pass_ == Pass::Evaluate) finish(value);
    return value;
  });
}

/// The root's parameters may be used anywhere in the model, so one use lasts for the whole
/// micro-batch.
void MicroBatches::acquire_root() {
  if (!state_.model.root) return;
  if (pass_ == Pass::Train) state_.model.root->begin_use();
  schedule_.acquire(*state_.model.root);
}

void MicroBatches::backward(const at::Tensor& loss) {
  if (!current_) raise(ErrorCode::InvalidArgument, "backward: there was no forward");
  guarded([&] {
    const auto mark = context_.runtime->mark(Stream::Compute, "backward");
    const double factor = state_.loss_scale() / static_cast<double>(count_);
    // A scaled loss may be too large for 16 bits.
    ((state_.scaler ? loss.to(at::kFloat) : loss) * factor).backward();
    finish(loss);
  });
}

void MicroBatches::finish(const at::Tensor& loss) {
  schedule_.end();
  for (const UnitRecord& unit : std::views::reverse(state_.model.units)) {
    if (pass_ == Pass::Train) unit.flat->finish_backward();
    unit.flat->release();
  }
  current_.reset();
  losses_.push_back(loss.detach());
  first_ += communicator_.size();
}

void MicroBatches::abandon() {
  for (const UnitRecord& unit : state_.model.units) unit.flat->abandon();
  current_.reset();
  count_ = first_ = 0;
}

at::Tensor MicroBatches::end() {
  ended_ = count_;
  count_ = first_ = 0;
  return at::stack(losses_).to(context_.runtime->device(), at::kDouble).reshape({-1});
}

std::vector<double> MicroBatches::gather(std::span<const double> own) const {
  return in_order(gather_doubles(communicator_, own));
}

std::vector<double> MicroBatches::in_order(std::span<const double> all) const {
  const auto ranks = static_cast<std::int64_t>(communicator_.size());
  const auto rounds = static_cast<std::int64_t>(all.size()) / ranks;
  std::vector<double> losses;
  for (std::int64_t id = 0; id < ended_; ++id)
    losses.push_back(all[static_cast<std::size_t>(id % ranks * rounds + id / ranks)]);
  return losses;
}

}  // namespace unishard::trainer::detail
