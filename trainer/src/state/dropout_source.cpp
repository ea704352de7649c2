#include "state/dropout_source.hpp"

#include "unishard/trainer/seeds.hpp"

#include "state/generator_scope.hpp"
#include "state/step_context.hpp"

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

}  // namespace unishard::trainer
