#include "unishard/trainer/dropout.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/seeds.hpp"

#include "state/dropout_generator.hpp"
#include "state/generator_scope.hpp"
#include "state/step_context.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace unishard::trainer {
namespace {

/// Thread-local, because the forward of a layer has no parameter for its unit's generator.
thread_local at::Generator* current_generator = nullptr;

}  // namespace

namespace detail {

at::Generator* dropout_generator() { return current_generator; }

at::Generator* exchange_dropout_generator(at::Generator* generator) {
  return std::exchange(current_generator, generator);
}

struct DropoutScope::State {
  OwnGenerator generator;
  at::Generator* outer;
};

DropoutScope::DropoutScope(const StepContext& context, std::uint64_t unit)
    : state_(new State{{context.runtime->device(),
                        dropout_seed(context.seed, context.step, context.micro_batch, unit)},
                       current_generator}) {
  current_generator = &state_->generator.get();
}

DropoutScope::~DropoutScope() { current_generator = state_->outer; }

}  // namespace detail

at::Tensor dropout(const at::Tensor& input, double p) {
  if (p < 0 || p >= 1)
    raise(ErrorCode::InvalidArgument, "dropout: the probability must be 0 up to 1");
  if (p == 0) return input;
  const at::Device drawn_on = current_generator ? current_generator->device() : input.device();
  at::Tensor mask = at::empty(input.sizes(), at::device(drawn_on).dtype(at::kFloat));
  {
    const at::NoGradGuard no_grad;
    if (current_generator) {
      mask.bernoulli_(1 - p, *current_generator);
    } else {
      mask.bernoulli_(1 - p);
    }
    mask.mul_(1 / (1 - p));
  }
  return input * mask.to(input.device(), input.scalar_type());
}

}  // namespace unishard::trainer
