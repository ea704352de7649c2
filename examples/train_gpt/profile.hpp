#pragma once
// What DeepSpeed's "flops_profiler" and "wall_clock_breakdown" ask for.
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/engine.hpp"

#include "options.hpp"

#include <ATen/core/Tensor.h>

#include <string>

namespace train_gpt {

/// The parts of one step on this rank, in seconds as the host sees them.
struct StepTimes {
  double forward = 0, backward = 0, update = 0;
};

/// Does what Engine::train_batch() does, by its three calls, and measures them. Collective.
unishard::trainer::StepStats timed_step(unishard::trainer::Engine& engine,
                                        const unishard::trainer::LossFunction& loss,
                                        StepTimes& times);
/// Returns a line on the times of rank 0.
std::string times_text(const StepTimes& times);

/// Returns the sum of what all ranks reach at the same time in products of large matrices, in
/// additions and multiplications per second. Collective.
double measure_peak(unishard::trainer::Communicator& communicator, unishard::DType compute,
                    at::Device device);

/// Describes the step that took `seconds`: the work of each unit and of the step, tokens and
/// operations per second, and the share of `peak`.
std::string profile_text(const Options& options, const unishard::trainer::BatchPlan& batch,
                         std::int64_t step, double seconds, double peak);

/// Throws: NotFound or InvalidArgument when the profile's file can have no place.
void require_profile_file(const unishard::trainer::Config& config);

/// Measures the peak, and writes the profile where the configuration says. Collective; rank 0
/// prints, and warns of a file that cannot be written, since training is dearer.
void report_profile(const Options& options, const unishard::trainer::Engine& engine,
                    unishard::trainer::Communicator& communicator, at::Device device,
                    std::int64_t step, double seconds);

}  // namespace train_gpt
