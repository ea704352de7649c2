#pragma once
// The schedules of accelerate: scheduler.bin, scheduler_1.bin, ... in the order in which a script
// prepared them, beside one or several optimizers.
// Thread safety: the functions keep no state.
#include "unishard/converters/loss.hpp"
#include "unishard/format/storage.hpp"

#include "formats/dcp/state_dict.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

/// Returns whether a schedule of torch has set the learning rate of the optimizer whose state is
/// `object`: it writes `initial_lr` into the groups.
bool has_schedule(const ObjectEntry& object);

/// Returns whether there is a file of any.
bool has_schedule_files(Storage& storage, const Path& folder);

/// Returns the schedules that are missing in `folder`: a number below others, and one where some
/// are there and more of the optimizers, `scheduled`, had one.
Losses missing_schedules(Storage& storage, const Path& folder,
                         const std::vector<std::string>& scheduled);

/// Returns a remark on a folder without any file of a schedule. `scheduled` is not empty.
std::string doubt_about_schedule(const std::vector<std::string>& scheduled);

}  // namespace unishard::converters::dcp
