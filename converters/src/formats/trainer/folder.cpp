#include "formats/trainer/folder.hpp"

#include "unishard/converters/adapter_names.hpp"
#include "unishard/format/error.hpp"

#include "formats/safetensors/model_folder.hpp"
#include "formats/torch/weight_index.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

namespace unishard::converters::trainer {
namespace {

constexpr std::array<const char*, 2> kTorchModels = {"pytorch_model.bin", "adapter_model.bin"};
constexpr std::array<const char*, 2> kModelConfigs = {"config.json", "adapter_config.json"};
constexpr const char* kTorchIndex = "pytorch_model.bin.index.json";

bool has_model(Storage& storage, const Path& folder) {
  return has_torch_model(storage, folder) || safetensors::is_model_folder(storage, folder);
}

/// A Trainer's folder with the configuration of a model has lost its model where that is not there.
bool has_model_or_config(Storage& storage, const Path& folder) {
  return has_model(storage, folder) || std::ranges::any_of(kModelConfigs, [&](const char* name) {
           return storage.kind(folder / name) == EntryKind::File;
         });
}

}  // namespace

FileNames file_names(Program program) {
  if (program == Program::Trainer)
    return {"trainer", "transformers", "optimizer.pt", "scheduler.pt"};
  return {"accelerate", "accelerate", "optimizer.bin", "scheduler.bin"};
}

std::optional<Path> torch_model_index(Storage& storage, const Path& folder) {
  const bool is_used = storage.kind(folder / kTorchModels[0]) == EntryKind::Missing &&
                       storage.kind(folder / kTorchIndex) == EntryKind::File;
  return is_used ? std::optional(folder / kTorchIndex) : std::nullopt;
}

std::vector<std::string> torch_model_files(Storage& storage, const Path& folder,
                                           std::vector<std::string>& notes) {
  if (const auto index = torch_model_index(storage, folder)) {
    std::vector<std::string> files;
    for (const auto& [file, names] : torch::read_weight_index(storage, *index))
      files.push_back(file);
    return files;
  }
  for (const char* name : kTorchModels) {
    if (storage.kind(folder / name) == EntryKind::File) return {name};
  }
  std::vector<std::string> files;
  if (const auto shards = torch::find_shards(storage, folder)) {
    for (const auto& [number, name] : shards->files) files.push_back(name);
    if (std::string doubt = shards->doubt(); !doubt.empty()) notes.push_back(std::move(doubt));
  }
  return files;
}

bool has_torch_model(Storage& storage, const Path& folder) {
  const auto has_file = [&](const char* name) {
    return storage.kind(folder / name) == EntryKind::File;
  };
  return has_file(kTorchIndex) || std::ranges::any_of(kTorchModels, has_file) ||
         torch::has_shards(storage, folder);
}

std::vector<std::string> adapter_folders(Storage& storage, const Path& folder) {
  std::vector<std::string> names;
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind != EntryKind::Directory) continue;
    for (const std::string_view suffix : {".safetensors", ".bin"}) {
      const Path file = folder / entry.name / fmt::format("{}{}", kAdapterStem, suffix);
      if (storage.kind(file) != EntryKind::File) continue;
      names.push_back(entry.name);
      break;
    }
  }
  std::ranges::sort(names);
  return names;
}

Path model_folder(Storage& storage, const Path& folder) {
  if (has_model_or_config(storage, folder)) return folder;
  const std::vector<std::string> adapters = adapter_folders(storage, folder);
  if (adapters.size() == 1) return folder / adapters.front();
  if (adapters.empty()) return folder;
  raise(ErrorCode::Unsupported,
        fmt::format("{} holds the adapters {}, and does not tell which of them the optimizer has "
                    "trained",
                    folder.string(), fmt::join(adapters, ", ")),
        fmt::format("name the folder of one for its weights, such as {}, or move the folders of "
                    "the others away",
                    (folder / adapters.front()).string()));
}

std::optional<Program> find_program(Storage& storage, const Path& folder) {
  if (storage.kind(folder) != EntryKind::Directory) return std::nullopt;
  for (const Program program : {Program::Trainer, Program::Accelerate}) {
    // What is no file is an error of the reader, and no model without an optimizer.
    if (storage.kind(folder / file_names(program).optimizer) == EntryKind::Missing) continue;
    if (has_model(storage, folder)) return program;
    if (program == Program::Trainer && storage.kind(folder / kTrainerState) == EntryKind::File &&
        !has_model_or_config(storage, folder) && !adapter_folders(storage, folder).empty())
      return program;
  }
  return std::nullopt;
}

}  // namespace unishard::converters::trainer
