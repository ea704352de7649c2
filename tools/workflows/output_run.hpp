#pragma once
// A result with a tag that goes into a folder which has checkpoints: those of the same run, or of
// another one, whose next resume must not start from the result.
#include "unishard/converters/registry.hpp"
#include "unishard/format/output_lock.hpp"

#include <string>

namespace unishard::tools {

struct LatestDecision {
  bool moves = true;
  std::string remark;  ///< why it stays; empty when it moves
};

/// Decides whether `latest` in `output.path` is to name the result, whose catalog is `target`: it
/// does not go back to an older step. A result belongs to the run that `latest` names when the
/// parameters have the same names and shapes, and when it has an optimizer if the run has one.
/// `may_be_fresh`: results of other runs may be added, and `latest` then names them.
/// Throws: AlreadyExists, naming the checkpoint, when the result does not belong to the run, or
/// when the checkpoint cannot be read.
LatestDecision decide_latest(Storage& storage, const converters::Output& output,
                             const Catalog& target, bool may_be_fresh);

/// Excludes other conversions into the folder of `output` while it is held. What decide_latest()
/// says meanwhile holds until the result is published.
OutputLock lock_run(Storage& storage, const converters::Output& output);

}  // namespace unishard::tools
