#pragma once
// The units of FSDP1 (torch/distributed/fsdp/_flat_param.py). A unit is a module of the model. Its
// parameters, without those of the units inside it, lie one behind the other in one flat parameter,
// in the order of the model. With `use_orig_params` each begins at a multiple of 16 bytes; older
// versions of torch leave no gaps. Rank r holds elements [r * s, (r + 1) * s) of the flat
// parameter, where s is its size divided by the number of ranks, rounded up.
#include <cstdint>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

/// The elements of one parameter that one rank holds.
struct RankPiece {
  std::uint64_t rank = 0, elements = 0;

  bool operator==(const RankPiece&) const = default;
};

/// A parameter or buffer of a model.
struct UnitParameter {
  std::string name;  ///< begins with the names of its modules: "layers.0.up.weight"
  std::uint64_t elements = 0;
  /// Sorted by rank, and not empty. Without any, the tensor may lie in a flat parameter (it is
  /// frozen) or not (it is a buffer, or tied to another parameter).
  std::vector<RankPiece> pieces;
};

enum class FlatUnits {
  Exist,
  Missing,
  Undecided,  ///< the search ended before it had looked at all choices of units
};

/// Upper bound on the steps of a search, each of a few nanoseconds.
inline constexpr std::uint64_t kMostUnitSteps = std::uint64_t{1} << 25;

/// Returns whether modules of the model can be chosen as units so that every piece has the size
/// that FSDP1 gives it. `model` has the order of the model. Thread-safe.
/// Complexity: one pass over the model for each level of modules; memory for 256 states a level.
FlatUnits find_flat_units(const std::vector<UnitParameter>& model, std::uint64_t ranks,
                          std::uint64_t most_steps = kMostUnitSteps);

}  // namespace unishard::converters::dcp
