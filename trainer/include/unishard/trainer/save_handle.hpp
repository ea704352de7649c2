#pragma once
// A save under way. In this version saving is synchronous: a handle that save_checkpoint() returned
// is both captured and durable. The interface leaves room for saving in the background.
#include <cstdint>
#include <string>

namespace unishard::trainer {

struct SaveReport {
  std::string tag;
  std::string folder;       ///< of the tag
  std::string identity;     ///< digest of the state, see format/catalog.hpp; known on rank 0 only
  std::uint64_t bytes = 0;  ///< stored by all ranks
  double seconds = 0;
};

class SaveHandle {
 public:
  explicit SaveHandle(SaveReport report) : report_(std::move(report)) {}
  bool captured() const { return true; }  ///< tensors may change again
  bool durable() const { return true; }   ///< committed, survives a crash
  /// Blocks until durable; rethrows what failed.
  const SaveReport& wait() const { return report_; }

 private:
  SaveReport report_;
};

}  // namespace unishard::trainer
