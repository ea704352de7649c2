#include "state/random_state.hpp"

#include <mutex>

namespace unishard::trainer::detail {
namespace {

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state().clone();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

RandomState RandomState::capture(at::Device device) {
  RandomState captured;
  for (at::Generator& each : default_generators(device))
    captured.defaults_.emplace_back(each, state_of(each));
  const DropoutSource source = dropout_source();
  if (source.generator)
    captured.dropout_.emplace(source.generator->device(), state_of(*source.generator));
  if (source.uses) captured.uses_ = *source.uses;
  return captured;
}

RandomStateScope::RandomStateScope(const RandomState& state) : uses_(state.uses_) {
  for (auto [generator, captured] : state.defaults_) {
    former_.emplace_back(generator, state_of(generator));
    set_state(generator, captured);
  }
  if (state.dropout_) {
    dropout_.emplace(state.dropout_->first, /*seed=*/0);
    set_state(dropout_->get(), state.dropout_->second);
  }
  outer_ =
      exchange_dropout_source({dropout_ ? &dropout_->get() : nullptr, uses_ ? &*uses_ : nullptr});
}

RandomStateScope::~RandomStateScope() {
  exchange_dropout_source(outer_);
  for (auto& [generator, state] : former_) set_state(generator, state);
}

}  // namespace unishard::trainer::detail
