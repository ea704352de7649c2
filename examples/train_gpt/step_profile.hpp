#pragma once
// What --profile, --profile-summary and --profile-steps ask for.
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/operator_profile.hpp"
#include "unishard/trainer/runtime.hpp"
#include "unishard/trainer/trace.hpp"

#include "options.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace train_gpt {

/// Profiles the steps that the options name, and tells it as soon as the last one is done. A file
/// that cannot be written is a warning, since training is dearer than its profile, and an error at
/// the end. Does nothing where the options ask for nothing. All functions are collective.
class StepProfile {
 public:
  /// `trace` has what the streams do. Lifetime: all must outlive this object.
  StepProfile(const Options& options, unishard::trainer::Runtime& runtime,
              unishard::trainer::Trace& trace, unishard::trainer::Communicator& communicator);
  void begin_step();
  void end_step();
  /// Tells what was profiled of a run that ended early, or says that nothing was.
  /// Throws: Io when the file could not be written.
  void finish();

 private:
  bool is_asked() const { return !options_.profile.empty() || options_.profile_summary; }
  void tell();

  const Options& options_;
  unishard::trainer::Runtime& runtime_;
  unishard::trainer::Trace& trace_;
  unishard::trainer::Communicator& communicator_;
  std::optional<unishard::trainer::OperatorProfile> profile_;  ///< while steps are profiled
  std::int64_t steps_ = 0;                                     ///< of this run
  std::int64_t profiled_ = 0;                                  ///< steps among them
  std::size_t first_span_ = 0;                                 ///< of the trace
  std::string problem_;
};

}  // namespace train_gpt
