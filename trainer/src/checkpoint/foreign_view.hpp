#pragma once
// A checkpoint of another program under the engine's names and shapes. Pure: reads nothing.
#include "unishard/format/catalog.hpp"
#include "unishard/trainer/foreign_names.hpp"

#include <vector>

namespace unishard::trainer::detail {

struct ForeignView {
  /// Where the tensor is in the file's catalog.
  struct Place {
    std::size_t tensor = 0;
    bool transposed = false;
  };
  /// Two tensors of the file (indices into its catalog) that are one here: they must be equal.
  struct Copy {
    std::size_t tensor = 0, of = 0;
  };

  Catalog catalog;            ///< a tensor that has no name here keeps the file's
  std::vector<Place> places;  ///< of each tensor of `catalog`
  std::vector<Copy> copies;
  std::vector<std::string> notes;
};

/// Tied weights are listed under the name that `wanted` has them under. Throws Mismatch when two
/// tensors are one here and have other shapes or types, and when it cannot be told whether the
/// file's matrices are transposed.
ForeignView view_foreign(const Catalog& saved, const Catalog& wanted, const ForeignNames& names);

}  // namespace unishard::trainer::detail
