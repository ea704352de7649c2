#include "unishard/trainer/dropout.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/seeds.hpp"

#include "state/dropout_source.hpp"
#include "state/generator_scope.hpp"
#include "state/step_context.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace unishard::trainer {
namespace {

/// Thread-local, because the forward of a layer has no parameter for it.
thread_local detail::DropoutSource current_source;

}  // namespace

namespace detail {

DropoutSource dropout_source() { return current_source; }

DropoutSource exchange_dropout_source(DropoutSource source) {
  return std::exchange(current_source, source);
}

struct DropoutScope::State {
  State(const StepContext& context, std::uint64_t unit)
      : outer(current_source),
        uses(outer.uses ? outer.uses : &own_uses),
        generator(
            context.runtime->device(),
            dropout_seed(context.seed, context.step, context.micro_batch, unit, (*uses)[unit]++)) {}

  DropoutSource outer;
  UseCounts own_uses;  ///< of the outermost scope
  UseCounts* uses;
  OwnGenerator generator;
};

DropoutScope::DropoutScope(const StepContext& context, std::uint64_t unit)
    : state_(std::make_unique<State>(context, unit)) {
  current_source = {&state_->generator.get(), state_->uses};
}

DropoutScope::~DropoutScope() { current_source = state_->outer; }

}  // namespace detail

at::Tensor dropout(const at::Tensor& input, double p) {
  if (p < 0 || p >= 1)
    raise(ErrorCode::InvalidArgument, "dropout: the probability must be 0 up to 1");
  if (p == 0) return input;
  at::Generator* const generator = current_source.generator;
  const at::Device drawn_on = generator ? generator->device() : input.device();
  at::Tensor mask = at::empty(input.sizes(), at::device(drawn_on).dtype(at::kFloat));
  {
    const at::NoGradGuard no_grad;
    if (generator) {
      mask.bernoulli_(1 - p, *generator);
    } else {
      mask.bernoulli_(1 - p);
    }
    mask.mul_(1 / (1 - p));
  }
  return input * mask.to(input.device(), input.scalar_type());
}

}  // namespace unishard::trainer
