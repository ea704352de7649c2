#pragma once
// The files of torch.save that the Trainer and accelerate write of an optimizer and a schedule,
// beside a model or beside the folders that FSDP writes of it.
#include "unishard/converters/loss.hpp"
#include "unishard/format/storage.hpp"

#include "containers/torch_file.hpp"
#include "formats/dcp/state_dict.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace unishard::converters::dcp {

/// Returns whether it is the state of an optimizer.
bool is_optimizer_state(torch::Value root);

/// Returns the name under which a file was written, where that is the place of another state and a
/// file is there too: the two were swapped, or one is a copy. torch names the folder in an archive
/// after the file. Empty where all is well.
std::string other_name(Storage& storage, const Path& path, const torch::TorchFile& file);

/// Opens the file of a state. One that is damaged, or no file, is lost: a model needs none.
std::optional<torch::TorchFile> open_state(Storage& storage, StateDictBuilder& builder,
                                           const Path& path, Role role);

/// Returns whether a file holds what its name says; else it is lost. A model needs none of these.
bool is_in_place(Storage& storage, StateDictBuilder& builder, const Path& path,
                 const torch::TorchFile& file, Role role);

/// Returns a remark on the file of a schedule that is not beside an optimizer. A Trainer saves one
/// with every optimizer; a script with accelerate may have none.
std::string missing_schedule(std::string_view schedule, std::string_view optimizer);

/// Reads the file of a schedule, or says that it is lost.
void read_schedule_file(Storage& storage, StateDictBuilder& builder, const Path& path);

/// Adds what the name of `folder`, and the schedule in it that was read, tell of the steps that an
/// optimizer does not count.
void add_likely_steps(Storage& storage, const Path& folder, StateDictBuilder& builder);

}  // namespace unishard::converters::dcp
