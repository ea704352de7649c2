#pragma once
// A save under way, or done. A save has two completions: captured (training may go on) and durable
// (a crash cannot lose it). save_checkpoint() returns when the state is captured, a synchronous one
// when it is durable. Handles are values that share one save and may outlive the engine, which
// waits for the save before it ends. Thread-safe.
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
  std::string folder;       ///< of the tag
  std::string identity;     ///< digest of the state, see format/catalog.hpp; known on rank 0 only
  std::uint64_t bytes = 0;  ///< of the state, all ranks
  std::uint64_t written_bytes = 0;  ///< of the files of all ranks: fewer if compressed or shared
  double seconds = 0;               ///< until durable
  double stall_seconds = 0;         ///< in save_checkpoint(), the wait for an earlier save included
  /// What went wrong after the checkpoint was durable, such as an older one that could not be
  /// removed; one sentence each. Known on rank 0 only.
  std::vector<std::string> warnings = {};
};

class SaveHandle {
 public:
  explicit SaveHandle(std::shared_ptr<detail::SaveOutcome> outcome)
      : outcome_(std::move(outcome)) {}
  bool captured() const { return true; }  ///< tensors may change again
  bool durable() const;                   ///< committed; stays false when the save has failed
  bool finished() const;                  ///< durable or failed: wait() does not block
  /// Blocks until durable, or rethrows what failed: this rank's own error, or PeerFailed naming the
  /// rank that failed. The report lives as long as a handle of this save.
  const SaveReport& wait() const;

 private:
  std::shared_ptr<detail::SaveOutcome> outcome_;
};

}  // namespace unishard::trainer
