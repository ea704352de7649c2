#pragma once
// Optimizer files of ranks. FSDP1's optimizer.state_dict() holds in each rank's file the rank's own
// pieces of the moments, as plain vectors under the numbers of parameters, and says neither their
// names nor their shapes nor where a piece lies (verl's optim_world_size_<N>_rank_<r>.pt).
#include "formats/dcp/rank_files.hpp"

namespace unishard::converters::dcp {

/// Reads the optimizer's files of all ranks. Copies and DTensors become what they are. Pieces are
/// joined (`use_orig_params`) where a number's pieces, in the order of the ranks, have as many
/// elements as the parameter of the model, order and sizes allow one choice only, and FSDP units
/// exist that give the ranks pieces of these sizes (flat_units.hpp). Vectors of whole flat
/// parameters are taken apart where StateDictBuilder::flat_units tells their content, and the
/// optimizer has one group with as many numbers. Other pieces are a loss: the optimizer's states
/// are then left out as a whole. `start` is what the files' names begin with. The optimizer is the
/// object of each file, or its member `member`.
/// Pre: the model was added to `builder` under the key "model". Throws: Corrupt or Unsupported,
/// naming the file.
void read_rank_optimizer(const RankFileGroup& group, const std::string& start,
                         StateDictBuilder& builder, const std::string& member = {});

}  // namespace unishard::converters::dcp
