#include "formats/files_beside.hpp"

#include "unishard/converters/damaged_files.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/staging_names.hpp"

#include "formats/deepspeed/layout.hpp"
#include "formats/unfinished_save.hpp"
#include "reading/broken_files.hpp"
#include "reading/completeness.hpp"
#include "reading/folder_names.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters {
namespace {

/// Programs save models, adapters and optimizers of their own into DeepSpeed's folders.
Losses beside_deepspeed(Storage& storage, const Path& folder) {
  Losses losses = unread_models(storage, folder, {});
  std::erase_if(losses, [](const Loss& loss) {
    return deepspeed::parse_file_name(loss.name).role != deepspeed::FileRole::Other;
  });
  for (const std::string_view name : kOptimizerFiles) {
    if (storage.kind(folder / name) == EntryKind::File)
      losses.push_back({Role::SideFile, std::string(name), "the optimizer of another save"});
  }
  constexpr const char* kSchedule = "scheduler.pt";
  if (storage.kind(folder / kSchedule) == EntryKind::File)
    losses.push_back({Role::SideFile, kSchedule,
                      "the Trainer's schedule beside a folder of DeepSpeed is not read; copy it if "
                      "the Trainer goes on from the result"});
  return losses;
}

/// Distributed checkpoints in the folder itself and in those within it.
Losses other_dcp_saves(Storage& storage, const Path& folder) {
  constexpr const char* kDcpMetadata = ".metadata";
  constexpr const char* kWhy = "a distributed checkpoint (DCP), which is not read";
  Losses losses;
  const auto is_save = [&](const Path& path) {
    return storage.kind(path / kDcpMetadata) == EntryKind::File;
  };
  if (is_save(folder)) losses.push_back({Role::OtherModel, kDcpMetadata, kWhy});
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind == EntryKind::Directory && !is_leftover(entry.name) &&
        is_save(folder / entry.name))
      losses.push_back({Role::OtherModel, entry.name, kWhy});
  }
  return losses;
}

/// Models in folders within that of a model: further adapters of PEFT, modules of
/// sentence-transformers, copies in another layout. One line for each folder.
/// `model` is the folder whose files are read.
Losses models_within(Storage& storage, const Path& folder, const Path& model) {
  Losses losses;
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind != EntryKind::Directory || is_leftover(entry.name) ||
        checkpoint_number(entry.name) || folder / entry.name == model)
      continue;
    Losses found;
    try {
      found = unread_models(storage, folder / entry.name, {});
    } catch (const Error&) {
      continue;  // a folder that cannot be listed
    }
    if (found.empty()) continue;
    losses.push_back({Role::OtherModel, entry.name + "/" + found.front().name,
                      model == folder
                          ? "the model is read from the files of the folder itself"
                          : fmt::format("the model is read from {}", model.filename().string())});
  }
  return losses;
}

}  // namespace

bool has_model_files(std::string_view format) {
  return format == "trainer" || format == "accelerate" || format == "safetensors" ||
         format == "torch" || format.empty();
}

Losses files_beside(Storage& storage, const Path& folder, std::string_view format,
                    const Source& source) {
  Losses losses = broken_files(storage, folder, has_model_files(format));
  const auto add = [&](Losses more) { std::ranges::move(more, std::back_inserter(losses)); };
  add(damaged_files(storage, folder, format, source));
  if (format.starts_with("deepspeed")) add(beside_deepspeed(storage, folder));
  if (format != "dcp") add(other_dcp_saves(storage, folder));
  if (has_model_files(format)) {
    const Path& model = source.model_folder();
    add(models_within(storage, folder, model.empty() ? folder : model));
    add(missing_training_state(storage, folder));
  } else if (format == "dcp" || format.starts_with("deepspeed")) {
    if (auto loss = unfinished_save(storage, folder)) losses.push_back(std::move(*loss));
  }
  constexpr const char* kSharded = "sharded";  // of torch's HuggingFaceStorageWriter
  if (format != "dcp" && storage.kind(folder / kSharded) == EntryKind::Directory)
    losses.push_back({Role::OtherModel, kSharded,
                      "the folder holds no file of a rank that could be read: the files beside it "
                      "are read"});
  return losses;
}

}  // namespace unishard::converters
