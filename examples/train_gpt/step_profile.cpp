#include "step_profile.hpp"

#include "unishard/format/error.hpp"

#include "console.hpp"
#include "trace_file.hpp"

#include <fmt/format.h>

#include <utility>

namespace train_gpt {

using namespace unishard;
using namespace unishard::trainer;

StepProfile::StepProfile(const Options& options, Runtime& runtime, Trace& trace,
                         Communicator& communicator)
    : options_(options), runtime_(runtime), trace_(trace), communicator_(communicator) {}

void StepProfile::begin_step() {
  ++steps_;
  if (options_.trace.empty() && !profile_) trace_.clear();
  if (!is_asked() || steps_ != options_.profile_first) return;
  runtime_.complete_trace();
  first_span_ = trace_.spans().size();
  profile_.emplace(runtime_.device());
}

void StepProfile::end_step() {
  if (!profile_) return;
  ++profiled_;
  if (steps_ == options_.profile_last) tell();
}

void StepProfile::tell() {
  runtime_.complete_trace();
  const std::vector<ProfiledWork> work = profile_->stop();
  profile_.reset();
  if (options_.profile_summary && communicator_.rank() == 0) {
    say(fmt::format("profile of {} steps, from step {} of this run, rank 0\n{}", profiled_,
                    options_.profile_first, profile_summary(work, profiled_)));
  }
  if (options_.profile.empty()) return;
  Json events = profile_events(work, communicator_.rank());
  for (Json& event : trace_.events(communicator_.rank(), first_span_))
    events.push_back(std::move(event));
  try {
    write_trace_file(options_.profile, events, communicator_, "");
  } catch (const Error& error) {
    problem_ = error.what();
    if (communicator_.rank() == 0) say_error(0, "warning", problem_ + "; training goes on");
  }
}

void StepProfile::finish() {
  if (profile_) tell();
  if (is_asked() && profiled_ == 0 && communicator_.rank() == 0) {
    say_error(
        0, "warning",
        fmt::format("nothing was profiled: this run had {} steps, and the profile begins with "
                    "its step {}",
                    steps_, options_.profile_first),
        "--profile-steps chooses the steps");
  }
  if (!problem_.empty()) raise(ErrorCode::Io, problem_, kHarmless);
}

}  // namespace train_gpt
