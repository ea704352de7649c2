#pragma once
// The places of the parameters of an FSDP unit in its flat parameter (flat_units.hpp),
// when their sizes and order are known. Thread safety: pure functions.
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

/// What the file of one rank has of a parameter under the parameter's own name.
struct FlatPiece {
  std::uint64_t elements = 0;
  /// Its first element in the rank's part of the flat parameter, where both share a storage.
  std::optional<std::uint64_t> begin = {};
};

struct FlatMember {
  std::uint64_t elements = 0;
  std::map<std::uint64_t, FlatPiece> pieces = {};  ///< by rank; empty without `use_orig_params`
};

/// A flat parameter in the files.
struct FlatVector {
  std::uint64_t elements = 0;
  /// True where `elements` counts what fills up the last rank's part, fewer elements than ranks.
  bool is_filled = false;
  std::uint64_t ranks = 1;
  bool may_have_gaps = false;  ///< its parameters may, although none has pieces
  std::map<std::uint64_t, ElementRange> parts = {};  ///< by rank
};

/// A parameter and its first element in the flat one.
struct PlacedParameter {
  std::string name;
  Shape shape;
  std::uint64_t begin = 0;
};

/// A flat parameter whose content is known.
struct PlacedUnit {
  FlatVector vector;
  std::vector<PlacedParameter> parameters;
};

/// Returns the first element of each member; nullopt unless their sizes fill the vector, each piece
/// has the size and place that FSDP1 gives it, and one choice of gaps only does that. Only
/// members with pieces have gaps, or those of a vector that says so.
std::optional<std::vector<std::uint64_t>> flat_places(const std::vector<FlatMember>& members,
                                                      const FlatVector& vector);

}  // namespace unishard::converters::dcp
