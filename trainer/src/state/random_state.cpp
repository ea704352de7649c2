#include "state/random_state.hpp"

#include "state/dropout_generator.hpp"

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
  if (at::Generator* const current = dropout_generator())
    captured.dropout_.emplace(current->device(), state_of(*current));
  return captured;
}

RandomStateScope::RandomStateScope(const RandomState& state) {
  for (auto [generator, captured] : state.defaults_) {
    former_.emplace_back(generator, state_of(generator));
    set_state(generator, captured);
  }
  if (state.dropout_) {
    dropout_.emplace(state.dropout_->first, /*seed=*/0);
    set_state(dropout_->get(), state.dropout_->second);
  }
  outer_ = exchange_dropout_generator(dropout_ ? &dropout_->get() : nullptr);
}

RandomStateScope::~RandomStateScope() {
  exchange_dropout_generator(outer_);
  for (auto& [generator, state] : former_) set_state(generator, state);
}

}  // namespace unishard::trainer::detail
