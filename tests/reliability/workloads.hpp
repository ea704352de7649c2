#pragma once
// The work during which the machine may stop, and the check of what is found afterwards.
#include "recording_storage.hpp"

#include <functional>
#include <string>
#include <vector>

namespace unishard::test {

struct Workload {
  std::string name;
  /// Creates what is durable before the work begins.
  std::function<void(Storage&)> prepare;
  /// Returns when its result is durable.
  std::function<void(Storage&)> work;
  /// Checks the state after a crash; returns what is wrong, or an empty text.
  std::function<std::string(Storage&, bool returned)> check;
  /// Does the work again on the state after a crash; returns what is wrong, or an empty text.
  std::function<std::string(Storage&)> again;
  /// Syncs that this work does not need although others do, and the reason.
  std::string unneeded = {}, because = {};
};

/// Returns saves of the trainer, retention, pruning, and the output of every sink, in `folder`,
/// which no other program uses. A folder of DeepSpeed universal has files for every parameter, of
/// which there are fewer unless `is_long`.
std::vector<Workload> all_workloads(const Path& folder, bool is_long);

}  // namespace unishard::test
