#pragma once
// What `unishard report` shows of one or several checkpoints: from tables and recorded statistics,
// without reading payload unless the options ask for it.
#include "unishard/format/storage.hpp"

#include "workflows/inspect.hpp"
#include "workflows/report/comparison.hpp"
#include "workflows/report/outliers.hpp"
#include "workflows/report/ownership.hpp"
#include "workflows/report/step_history.hpp"
#include "workflows/verify/verify.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct ReportOptions {
  /// Tag of the first checkpoint; nullopt: what `latest` names.
  std::optional<std::string> tag = {};
  /// Every checkpoint of the first path's folder, after the one that `tag` chooses.
  bool all_tags = false;
  /// Read all payload: verify() with checksums, diff() of what digests do not decide.
  bool deep = false;
  /// Measure statistics that the format does not store; reads the payload.
  bool stats = false;
  TransferOptions transfer = {};
};

/// The tensors of one state and type.
struct StateBytes {
  std::string state;
  DType dtype = DType::Float32;
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
  bool derived = false;  ///< rebuilt by readers: `bytes` are not stored
};

struct ReportedCheckpoint {
  /// Tensors, aliases and most sections of the catalog are only in the first described one.
  Description description;
  /// Why the checkpoint cannot be opened; empty when it can. Its manifest alone is described then.
  std::string problem;
  bool is_supported = true;   ///< false: `problem` is that UniShard does not read such a checkpoint
  bool is_described = false;  ///< false: the description has only path and tag
  VerifyReport verified;
  std::vector<StateBytes> states;
  std::uint64_t tensors = 0, parameters = 0, bytes = 0;
  bool has_stats = false;  ///< for at least one tensor
};

struct Report {
  std::vector<ReportedCheckpoint> checkpoints;  ///< in the order of the arguments
  /// Indices of those that are described. The first of them keeps its tensors.
  std::vector<std::size_t> described;
  std::vector<Outlier> outliers;
  Ownership owned;
  std::optional<StepHistory> history;          ///< of `described`, when there are several
  std::vector<std::size_t> history_order;      ///< indices into `described`, by step
  std::optional<DigestComparison> comparison;  ///< of the first two described ones

  bool is_clean() const;  ///< no checkpoint is damaged
};

/// Throws: NotFound or Unsupported when a path is no checkpoint. A damaged checkpoint is no error:
/// its findings are part of the result.
Report make_report(Storage& storage, const std::vector<std::string>& paths,
                   const ReportOptions& options);

}  // namespace unishard::tools
