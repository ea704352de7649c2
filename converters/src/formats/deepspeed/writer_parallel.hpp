#pragma once
// DeepSpeed's ordinary folder of a run that is parallel beside ZeRO.
#include "unishard/converters/parallel_ranks.hpp"
#include "unishard/converters/sink.hpp"

#include <memory>
#include <string>

namespace unishard::converters {

/// Returns the sink of the folder `<folder>/<tag>` for `ranks`, of which the catalog's world size
/// counts all. The other arguments are those of make_deepspeed_sink(). Where a tensor was not cut
/// into rows, it is read once for each tensor-parallel rank, so that the plan does not have to list
/// the pieces of every row.
/// Lifetime: `storage` must outlive the sink.
/// Pre: ranks.any().
/// Throws: as make_deepspeed_sink() does; InvalidArgument when the ranks do not divide the world
/// size, or the stages not the layers; Unsupported, naming the tensor, when nothing says how to cut
/// the tensors, or one cannot be cut so.
std::unique_ptr<Sink> make_deepspeed_parallel_sink(Storage& storage, const Path& folder,
                                                   const std::string& tag, Catalog catalog,
                                                   const ParallelRanks& ranks,
                                                   const WorkSplit& share, SideFiles side_files,
                                                   bool moves_latest);

}  // namespace unishard::converters
