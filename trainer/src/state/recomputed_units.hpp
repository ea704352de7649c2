#pragma once
// The units whose activations a part of the model computes again; see Recompute.
#include <vector>

namespace unishard::trainer::detail {

class FlatUnit;

/// Counts every use of a unit on this thread as one that is computed again later, and lists its
/// unit, until it is destroyed. Scopes nest; the innermost one counts.
class RecomputedScope {
 public:
  /// Lifetime: `units` must outlive this object.
  explicit RecomputedScope(std::vector<FlatUnit*>& units);
  ~RecomputedScope();
  RecomputedScope(const RecomputedScope&) = delete;
  RecomputedScope& operator=(const RecomputedScope&) = delete;

 private:
  std::vector<FlatUnit*>* outer_;
};

/// Tells this thread's innermost RecomputedScope, if there is one, that a unit is used.
void count_if_recomputed(FlatUnit& unit);

/// Says that the uses which a RecomputedScope has listed have had their backward pass.
void end_recomputed(std::vector<FlatUnit*>& units);

}  // namespace unishard::trainer::detail
