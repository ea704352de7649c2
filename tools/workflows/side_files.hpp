#pragma once
// The small files beside a Hugging Face model, or beside the checkpoint of a Hugging Face Trainer.
// They are copied unchanged into a result that may be published, so only regular files of the
// folder itself are taken.
#include "unishard/converters/sink.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

/// The file by which the folder of a Trainer is known.
inline constexpr std::string_view kTrainerState = "trainer_state.json";

/// Returns config.json, tokenizer files, the source of a custom model and similar files of the
/// folder `model`; none when it is no folder. Links that leave the folder (except those of the
/// Hugging Face cache, snapshots/REVISION
/// -> blobs), files that are not regular or too large, and .json files that are not JSON are left
/// out, each with a line in `notes`.
converters::SideFiles find_side_files(const Path& model, std::vector<std::string>& notes);

/// Returns the content of one such file; nullopt where there is none, or where it is left out.
std::optional<std::string> read_side_file(const Path& model, const std::string& name);

/// Returns the files of the folder `run` without which the Trainer of Hugging Face, or accelerate,
/// does not resume from the checkpoint in it: trainer_state.json, the random generators, the
/// schedule, samplers, objects of the user's, the model's configuration and source. None when it is
/// no folder of theirs. The same files are left out as above.
converters::SideFiles find_trainer_files(const Path& run, std::vector<std::string>& notes);

/// Returns the files of `folder` that have these names. The same files are left out as above, and
/// names that a checkpoint gives to its own files.
converters::SideFiles find_named_files(const Path& folder, std::vector<std::string> names,
                                       std::vector<std::string>& notes);

/// Returns the names of the files in `run`, the checkpoint of a Trainer or of accelerate, that
/// neither find_trainer_files() takes nor the checkpoint's reader reads or names.
std::vector<std::string> find_unknown_files(const Path& run);

/// Returns the names, for reports.
std::vector<std::string> names_of(const converters::SideFiles& files);

}  // namespace unishard::tools
