#pragma once
// One rewrite of a UniShard checkpoint as a UniShard checkpoint, from its options to its report.
#include "commands/convert_run.hpp"
#include "workflows/reshard.hpp"

#include <memory>
#include <string_view>

namespace unishard::cli {

/// A checkpoint and what becomes of it.
struct Rewrite {
  std::string_view verb, done;  ///< "reshard", "resharded"
  std::shared_ptr<const CheckpointReader> input;
  tools::ReshardPlan plan;
};

/// Collective. Returns the exit status: 1 when what was written differs.
int run_rewrite(tools::Team& team, const ConvertRun& job, Rewrite rewrite);
/// Opens the input of a reshard and calls run_rewrite().
int run_reshard(tools::Team& team, const ConvertRun& job);

}  // namespace unishard::cli
