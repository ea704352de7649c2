#pragma once
// Settings of a resumed run that differ from those of the run that saved the checkpoint.
#include "unishard/format/catalog.hpp"

#include "state/training_state.hpp"

#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// Appends a note for each setting that `saved` names and that differs here, where the
/// configuration's value is used: numbers of the parameter groups (`wanted` has this run's), the
/// schedule, the precision, the samples of a step, the clipping of gradients. A configuration that
/// parse_config() refuses, such as another program's, is not compared.
void note_other_settings(const TrainingState& state, const Catalog& saved, const Catalog& wanted,
                         std::vector<std::string>& notes);

}  // namespace unishard::trainer::detail
