#pragma once
// Decides whether two checkpoints, of any world size, stage or format, hold the same state. Digests
// decide when both sides have them; bytes are read only for tensors whose digests differ or are not
// stored.
#include "unishard/converters/source.hpp"
#include "unishard/format/bounded_executor.hpp"

#include "workflows/compare.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct DiffOptions {
  std::optional<double> tolerance;  ///< nullopt: every bit counts
  std::vector<std::string> states;  ///< compare only these; empty: all
  bool upcast = false;              ///< compare the values of different floating-point types
  TransferOptions transfer = {};
};

/// Unread: a weight that one side's files hold and that cannot be read.
enum class DiffKind : std::uint8_t { OnlyInA, OnlyInB, Shape, DType, Values, Scalar, Unread };

struct TensorDiff {
  std::string tensor = {};  ///< label on a side that has it
  DiffKind kind = DiffKind::Values;
  std::string a = {}, b = {};  ///< shape, dtype or scalar on both sides
  ElementDiff elements = {};   ///< for Values
};

/// Tensors of one state.
struct StateCount {
  std::uint64_t compared = 0;   ///< that both sides have
  std::uint64_t different = 0;  ///< of these
  std::uint64_t only_a = 0, only_b = 0;
};

struct DiffReport {
  std::optional<std::string> identity_a, identity_b;
  std::uint64_t compared = 0;   ///< tensors that both sides have
  std::uint64_t by_digest = 0;  ///< tensors among these that were decided without reading
  std::uint64_t bytes_read = 0;
  std::uint64_t names = 0, different_names = 0;  ///< of parameters and buffers
  std::uint64_t other_types = 0;  ///< dtype differences that DiffOptions::upcast would compare
  std::map<std::string, StateCount> states;
  std::vector<TensorDiff> differences;
  /// Tensors whose bits differ within the tolerance.
  std::vector<TensorDiff> within_tolerance;
  /// Differences of step, world size, groups and so on, which are no differences of the state.
  std::vector<std::string> information;

  bool same_state() const { return differences.empty(); }
};

/// Compares two checkpoints. A format with one state per parameter (safetensors) is compared with
/// the state from which it was made: fp32, weights or buffer, whichever has its type and shape. The
/// other side's optimizer states are then left out. Tied parameters: see pair_tensors().
DiffReport diff(const converters::Source& a, const converters::Source& b,
                const DiffOptions& options);

}  // namespace unishard::tools
