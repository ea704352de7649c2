#pragma once
// The optimizer of nanotron: `optimizer/optimizer_<ranks>.pt` for each rank, with moments under
// numbers that `names` resolves, and fp32 masters under `gradient_accumulator`. Under ZeRO-1 each
// data-parallel rank has a slice of the flattened part of its tensor-parallel rank. Source:
// nanotron 0.4, serialize/optimizer, optim/zero, optim/named_optimizer, optim/gradient_accumulator.
#include "formats/dcp/nanotron_weights.hpp"
#include "formats/dcp/state_dict.hpp"

namespace unishard::converters::dcp::nanotron {

/// Adds masters, states and parameter groups of the optimizer's files in `folder`, for the
/// parameters of the model. Where the file of a rank is missing or damaged, the optimizer is a
/// loss. Throws: Corrupt, naming the file, for what contradicts the model or other files, and for
/// masters of which none rounds to the weights.
void read_optimizer(Storage& storage, const Path& folder, const Parameters& parameters,
                    StateDictBuilder& builder);

}  // namespace unishard::converters::dcp::nanotron
