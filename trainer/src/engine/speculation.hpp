#pragma once
// Updates during the backward pass, before the norm of the gradients is known.
//
// A unit whose state is offloaded is updated as soon as its gradients are there, as if nothing were
// clipped, so that its files are read and written, or the host works, while other units compute.
// The results go to drafts. In files, these are arrays that share the blocks which have not changed
// and have blocks of their own for the rest; in the host's memory, other arrays. When the norm is
// known the drafts become the state, or are dropped, and the update begins anew with the scale.
// What is undone has never been there, so bits do not depend on it. An update cannot be computed
// backwards to the same bits, so the old state needs room.
#include "engine/tile_update.hpp"
#include "state/unit_link.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>

namespace unishard::trainer::detail {

using UnitSet = std::unordered_set<const UnitRecord*>;

/// Lifetime: what it is constructed with outlives it.
/// Thread safety: hear() may be called while the thread that trains calls the others.
class Speculation {
 public:
  /// Reserves the room for drafts of all units that can be drafted.
  /// Throws: NoSpace, naming the folder of the files.
  Speculation(const TrainingState& state, Runtime& runtime);
  ~Speculation();
  Speculation(const Speculation&) = delete;
  Speculation& operator=(const Speculation&) = delete;

  /// Begins a step without drafts. Nothing is updated ahead in the step after one that was clipped
  /// or left out, because the next one often is too.
  void begin_step();
  /// Updates a draft of a unit whose gradients are complete. Drops all drafts when the gradients of
  /// a unit that has one are about to change.
  void hear(const FlatUnit& unit, Sums what);
  /// Makes the drafts the state if `scale` is that of their gradients, and drops them otherwise.
  /// Returns the units that are now updated.
  UnitSet settle(float scale);
  /// Drops the drafts of a step that is left out.
  void drop();
  /// Return the bytes of files, and of the host's memory, that are reserved for drafts.
  std::int64_t bytes_in_files() const { return bytes_in_files_; }
  std::int64_t bytes_in_memory() const;

 private:
  class Drafts;

  float unclipped_scale() const;
  std::unique_ptr<Drafts> take_drafts();

  const TrainingState& state_;
  Runtime& runtime_;
  const std::int64_t bytes_in_files_;
  std::map<const FlatUnit*, UnitArrays> spares_;  ///< for drafts of those that are in memory
  bool is_likely_ = true;                         ///< that nothing will be clipped
  std::mutex mutex_;
  std::unique_ptr<Drafts> drafts_;
};

}  // namespace unishard::trainer::detail
