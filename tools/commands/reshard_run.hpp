#pragma once
// One rewrite of a UniShard checkpoint as a UniShard checkpoint, from its options to its report.
#include "commands/convert_run.hpp"

namespace unishard::cli {

/// Collective. Returns the exit status: 1 when what was written differs.
int run_reshard(tools::Team& team, const ConvertRun& job);

}  // namespace unishard::cli
