#pragma once
// A save in progress or finished. A save has two completions: captured (training may continue) and
// durable (a crash cannot lose it). save_checkpoint() returns when the state is captured; a
// synchronous one, when it is durable. Masters and optimizer states may still be copied then; the
// next update waits for it.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace unishard::trainer {

namespace detail {
class SaveOutcome;
}

struct SaveReport {
  std::string tag;
  std::string folder;       ///< the tag's folder
  std::string identity;     ///< digest of the state, see format/catalog.hpp; known on rank 0 only
  std::uint64_t bytes = 0;  ///< bytes of the state on all ranks
  /// Bytes written to files by all ranks; fewer than `bytes` if compressed or shared.
  std::uint64_t written_bytes = 0;
  double seconds = 0;        ///< time until durable
  double stall_seconds = 0;  ///< time in save_checkpoint()
  double wait_seconds = 0;   ///< part of it: until an earlier save was done
  /// One sentence for each failure after the checkpoint was durable, such as an older checkpoint
  /// that could not be removed, and one about buffers that differ between the ranks. Known on rank
  /// 0 only.
  std::vector<std::string> warnings = {};
};

/// Handles of the same save share its outcome. Thread-safe. A handle may outlive the engine, which
/// waits for the save in its destructor.
class SaveHandle {
 public:
  explicit SaveHandle(std::shared_ptr<detail::SaveOutcome> outcome)
      : outcome_(std::move(outcome)) {}
  bool captured() const { return true; }  ///< tensors may change again
  bool durable() const;                   ///< committed; stays false after a failure
  bool finished() const;                  ///< durable or failed: wait() does not block
  /// Blocks until the save is durable.
  /// Lifetime: the report lives as long as any handle of this save.
  /// Throws: what failed: this rank's own error, or PeerFailed naming the rank that failed.
  const SaveReport& wait() const;

 private:
  std::shared_ptr<detail::SaveOutcome> outcome_;
};

}  // namespace unishard::trainer
