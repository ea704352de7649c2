#pragma once
// When the parameters of units are gathered and released at stage 3. The schedule records the order
// in which a micro-batch uses the units. The next micro-batches follow it: parameters are gathered
// before they are needed, and kept when they are needed again soon. When a micro-batch uses the
// units in another order, the schedule records anew; that costs time and changes no result.
#include "state/flat_unit.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace unishard::trainer::detail {

/// Counts of elements; DeepSpeed's keys and defaults. A unit is gathered as a whole, so one unit
/// may be above the limits of `prefetch` and `live`.
struct GatherLimits {
  /// "stage3_prefetch_bucket_size": gathered ahead; 0: nothing, else at least one unit.
  std::int64_t prefetch = 50'000'000;
  std::int64_t live = 1'000'000'000;   ///< "stage3_max_live_parameters": gathered at a time
  std::int64_t reuse = 1'000'000'000;  ///< "stage3_max_reuse_distance": kept until the next use
};

/// Not thread-safe.
class GatherSchedule {
 public:
  enum class Pass : std::uint8_t { Train, Evaluate };

  explicit GatherSchedule(GatherLimits limits) : limits_(limits) {}

  /// Begins a micro-batch.
  void begin(Pass pass);
  /// Gathers the parameters of a unit for what Compute is given next.
  void acquire(FlatUnit& unit);
  /// Releases the parameters of a unit, unless they are needed again soon.
  void release(FlatUnit& unit);
  /// Ends a micro-batch. Units that are still gathered are the caller's to release.
  void end();

 private:
  bool is_needed_soon(const FlatUnit& unit) const;
  void prefetch();
  bool may_prefetch(const FlatUnit& unit, std::int64_t ahead) const;
  std::int64_t live() const;

  GatherLimits limits_;
  std::array<std::vector<FlatUnit*>, 2> recorded_;  ///< by pass
  std::vector<FlatUnit*> used_;                     ///< in this micro-batch
  std::vector<FlatUnit*> units_;                    ///< every unit that was used once
  Pass pass_ = Pass::Train;
  bool follows_ = false;  ///< used_ is how recorded_ begins
};

}  // namespace unishard::trainer::detail
