#pragma once
// What an optimizer's states say against each other and against the model, in every format alike:
// signs of a damaged file, or of two files from different saves. Nothing of it is certain, since
// some optimizers keep states of other shapes, so each is a remark.
// Thread safety: pure functions.
#include "unishard/converters/loss.hpp"
#include "unishard/format/catalog.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters {

/// Returns at most one line for each kind of doubt: moments of another shape than their parameter;
/// moments with numbers that have the shape of no parameter, or more of a shape than parameters;
/// groups that list more parameters than the model has, where they list numbers;
/// moments, or a step, that a parameter lacks and the others like it have; one of Adam's two
/// moments, or all states, that no parameter has after a step; 8-bit moments without their scales;
/// parameters that two groups list, that no group lists, or that groups list and nothing has;
/// moments under the name of a parameter that has no weights.
/// `losses` are those of the source, which explain some of them.
std::vector<std::string> doubts_about_states(const Catalog& catalog, const Losses& losses);

/// Returns a line for settings that every optimizer of torch has, and that these states lack: the
/// parameter groups, or a group's lr. For formats that keep the settings of every optimizer.
std::vector<std::string> doubts_about_settings(const Catalog& catalog);

/// Returns whether the optimizer of a run of DeepSpeed has counted a step more than the run: one
/// with gradients of zero makes its states, before 0.13.2 at every stage, and for 16-bit weights at
/// stage 0 (FP16_Optimizer and FP16_UnfusedOptimizer, also for bf16) in every version.
bool counts_the_start(const Catalog& catalog);

/// Returns the steps that a schedule of torch counts; nullopt for one that counts epochs or
/// evaluations.
std::optional<double> steps_of_schedule(const Json& schedule);

/// Returns a line for each count of steps that is not `steps`, that of a Trainer's
/// trainer_state.json, which counts skipped ones too: the optimizer's, the schedule's, and
/// `number`, which the folder's name has. A schedule may count a step for each process, unless
/// `has_one_process`.
std::vector<std::string> doubts_about_steps(const Catalog& catalog, std::int64_t steps,
                                            std::optional<std::uint64_t> number,
                                            bool has_one_process);

}  // namespace unishard::converters
