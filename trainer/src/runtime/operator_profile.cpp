#include "unishard/trainer/operator_profile.hpp"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <set>

namespace unishard::trainer {
namespace {

namespace profiler = torch::autograd::profiler;
using profiler::ActivityType;

/// LibTorch 2.3 and later count nanoseconds.
template <class Event>
double begin_of(const Event& event) {
  if constexpr (requires { event.startNs(); })
    return static_cast<double>(event.startNs()) / 1e3;
  else
    return static_cast<double>(event.startUs());
}

template <class Event>
double duration_of(const Event& event) {
  if constexpr (requires { event.durationNs(); })
    return static_cast<double>(event.durationNs()) / 1e3;
  else
    return static_cast<double>(event.durationUs());
}

ProfiledWork work_of(const profiler::KinetoEvent& event) {
  const bool on_device = event.deviceType() != c10::DeviceType::CPU;
  std::string lane =
      on_device ? fmt::format("{}:{} stream {}",
                              c10::DeviceTypeName(event.deviceType(), /*lower_case=*/true),
                              static_cast<int>(event.deviceIndex()), event.deviceResourceId())
                : fmt::format("thread {}", event.startThreadId());
  return {.name = event.name(),
          .lane = std::move(lane),
          .on_device = on_device,
          .begin = begin_of(event),
          .duration = duration_of(event)};
}

}  // namespace

OperatorProfile::OperatorProfile(c10::Device device) {
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
}

OperatorProfile::~OperatorProfile() {
  if (is_recording_) profiler::disableProfiler();
}

std::vector<ProfiledWork> OperatorProfile::stop() {
  is_recording_ = false;
  const auto result = profiler::disableProfiler();
  std::vector<ProfiledWork> work;
  work.reserve(result->events().size());
  for (const profiler::KinetoEvent& event : result->events()) work.push_back(work_of(event));
  std::ranges::stable_sort(work, {}, &ProfiledWork::begin);
  return work;
}

}  // namespace unishard::trainer
