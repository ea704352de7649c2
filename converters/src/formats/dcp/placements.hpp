#pragma once
// The elements of a tensor that the placements of a DTensor give to a rank, as
// torch/distributed/tensor/placement_types.py and _dtensor_spec.py of PyTorch 2.15 define it.
// Thread safety: pure functions.
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <vector>

namespace unishard::converters::dcp {

/// How one dimension of the mesh splits the tensor.
struct Placement {
  bool is_sharded = false;         ///< false: every rank of the dimension has all
  std::uint64_t dim = 0;           ///< of the tensor
  std::uint64_t split_factor = 1;  ///< of _StridedShard; 1: Shard
};

/// A mesh of ranks, and the place of one rank in it.
struct MeshPlace {
  Shape shape, coordinate;
};

/// The indices of one dimension that a rank holds, as ranges in the order of its local tensor.
using HeldIndices = std::vector<ElementRange>;

/// Returns the indices that the rank holds of each dimension of a tensor of `shape`. Splits of one
/// dimension apply from left to right, but those of a _StridedShard after the dimensions of the
/// mesh to the right of it whose sizes make its factor: FSDP2 splits what tensor parallelism has
/// left. Where no such order fits, the factor means what it says: split into that many parts first,
/// and of each the rank's share.
/// Throws: Corrupt for placements that contradict mesh or tensor; Unsupported for more than 4096
/// ranges of one dimension.
std::vector<HeldIndices> held_indices(const Shape& shape, const MeshPlace& mesh,
                                      const std::vector<Placement>& placements);

}  // namespace unishard::converters::dcp
