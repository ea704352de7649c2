#pragma once
// Maps a checkpoint of another program to the engine's names and shapes. Reads no tensor data.
// Thread safety: values and pure functions.
#include "unishard/format/catalog.hpp"
#include "unishard/trainer/foreign_names.hpp"

#include <vector>

namespace unishard::trainer::detail {

struct ForeignView {
  /// The location of a tensor in the file's catalog.
  struct Place {
    std::size_t tensor = 0;
    bool transposed = false;
  };
  /// Two tensors of the file (indices into its catalog) that are one tensor in the model and must
  /// be equal.
  struct Copy {
    std::size_t tensor = 0, of = 0;
  };

  /// The engine's names; a tensor without one keeps the file's name.
  Catalog catalog;
  std::vector<Place> places;  ///< the location of each tensor of `catalog`
  std::vector<Copy> copies;
  std::vector<std::string> notes;
};

/// Tied weights have the name under which `wanted` lists them.
/// Throws: Mismatch when two tensors that are one in the model have different shapes or types, or
/// when the file does not reveal whether its matrices are transposed.
ForeignView view_foreign(const Catalog& saved, const Catalog& wanted, const ForeignNames& names);

}  // namespace unishard::trainer::detail
