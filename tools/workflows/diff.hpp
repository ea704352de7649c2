#pragma once
// Do two checkpoints, of whatever world size, stage or format, hold the same state? Decided by
// digests where both sides have them; the bytes are read only of tensors whose digests differ or
// are not stored.
#include "unishard/converters/source.hpp"
#include "unishard/format/bounded_executor.hpp"

#include "workflows/compare.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct DiffOptions {
  std::optional<double> tolerance;  ///< nullopt: every bit counts
  std::vector<std::string> states;  ///< only these; empty: all
  TransferOptions transfer = {};
};

enum class DiffKind : std::uint8_t { OnlyInA, OnlyInB, Shape, DType, Values };

struct TensorDiff {
  std::string tensor;  ///< label on the side that has it
  DiffKind kind = DiffKind::Values;
  std::string a, b;      ///< shape or dtype of the sides, for Shape and DType
  ElementDiff elements;  ///< for Values
};

struct DiffReport {
  std::optional<std::string> identity_a, identity_b;
  std::uint64_t compared = 0;   ///< tensors that both sides have
  std::uint64_t by_digest = 0;  ///< of these, decided without reading
  std::uint64_t bytes_read = 0;
  std::vector<TensorDiff> differences;
  std::vector<TensorDiff> within_tolerance;  ///< differ in bits, and not beyond the tolerance
  std::vector<std::string>
      information;  ///< step, world size, groups, ...: no difference of the state

  bool same_state() const { return differences.empty(); }
};

/// A format that knows one state per parameter (safetensors) is compared with the state that it
/// came from: fp32, weights or buffer, whichever has its type and shape; the other side's optimizer
/// states are then left out.
DiffReport diff(const converters::Source& a, const converters::Source& b,
                const DiffOptions& options);

}  // namespace unishard::tools
