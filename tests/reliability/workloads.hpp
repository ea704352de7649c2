#pragma once
// What is done while the machine may stop, and what must be found afterwards.
#include "recording_storage.hpp"

#include <functional>
#include <string>
#include <vector>

namespace unishard::test {

struct Workload {
  std::string name;
  /// What is there, durable, before the work begins.
  std::function<void(Storage&)> prepare;
  /// The work. It returns when its result is durable.
  std::function<void(Storage&)> work;
  /// Looks at what a crash left; returns what is wrong, or an empty text.
  std::function<std::string(Storage&, bool returned)> check;
  /// Does the work again on what a crash left; returns what is wrong, or an empty text.
  std::function<std::string(Storage&)> again;
  /// Syncs that this work could do without, though others could not, in words; and why.
  std::string unneeded = {}, because = {};
};

/// Saves of the trainer, retention, pruning, and the output of every sink, in `folder`, which
/// nobody else uses.
std::vector<Workload> all_workloads(const Path& folder);

}  // namespace unishard::test
