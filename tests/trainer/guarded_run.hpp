#pragma once
// Runs of the small model on guarded devices and on the host.
#include "adapted_model.hpp"
#include "guarded_device/guarded_device.hpp"
#include "guarded_runtime.hpp"
#include "small_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace unishard::test {

enum class Where { Host, Device };

inline std::unique_ptr<trainer::Runtime> make_runtime(Where where,
                                                      const trainer::Communicator& communicator) {
  guarded::install();  // precedes the first backward pass, which may be the host's
  if (where == Where::Host) return trainer::make_host_runtime();
  return make_guarded_runtime({.device = static_cast<int>(communicator.rank())});
}

/// Runs `world` ranks: calls `body` with engine, model and rank 0's Ran (other ranks: one of their
/// own).
template <class Body>
Ran run(Where where, std::uint32_t world, const trainer::Config& config, const Body& body) {
  Ran first;
  run_threads(world, [&](trainer::Communicator& communicator) {
    const auto runtime = make_runtime(where, communicator);
    SmallModel model = build(trainer::placement_for(config, communicator, runtime->device()));
    trainer::Engine engine(model.ptr(), communicator, config, {.runtime = runtime.get()});
    Ran own;
    Ran& ran = communicator.rank() == 0 ? first : own;
    body(engine, model, ran);
    for (const auto& [name, value] : parameters_of(engine, model))
      ran.parameters[name] = value.cpu();
  });
  EXPECT_THAT(guarded::take_violations(), testing::IsEmpty());
  return first;
}

inline void train(trainer::Engine& engine, SmallModel& model, int steps, Ran& ran) {
  for (int i = 0; i < steps; ++i) {
    const trainer::StepStats stats = step(engine, model);
    ran.numbers.insert(ran.numbers.end(), {stats.loss, stats.gradient_norm});
  }
}

}  // namespace unishard::test
