#include "formats/trainer/folder.hpp"

#include "unishard/converters/adapter_names.hpp"
#include "unishard/format/error.hpp"

#include "formats/safetensors/model_folder.hpp"
#include "formats/torch/weight_index.hpp"
#include "formats/trainer/trained_adapter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

namespace unishard::converters::trainer {
namespace {

constexpr std::array<const char*, 2> kTorchModels = {"pytorch_model.bin", "adapter_model.bin"};
constexpr std::array<const char*, 2> kModelConfigs = {"config.json", "adapter_config.json"};
constexpr std::array<std::string_view, 2> kAdapterSuffixes = {".safetensors", ".bin"};
constexpr const char* kTorchIndex = "pytorch_model.bin.index.json";

bool has_model(Storage& storage, const Path& folder) {
  return has_torch_model(storage, folder) || safetensors::is_model_folder(storage, folder);
}

bool has_adapter(Storage& storage, const Path& folder) {
  return std::ranges::any_of(kAdapterSuffixes, [&](std::string_view suffix) {
    return storage.kind(folder / fmt::format("{}{}", kAdapterStem, suffix)) == EntryKind::File;
  });
}

/// Says of other adapters that they may be the trained ones.
std::string words_on_alike(const std::vector<std::string>& others) {
  if (others.size() == 1)
    return fmt::format(
        "the adapter {} too, which has the same shapes and may be the one that was trained; "
        "--assume-model-order says that it is not",
        others.front());
  return fmt::format(
      "the adapters {} too, which have the same shapes, and one of them may be the one that was "
      "trained; --assume-model-order says that none is",
      fmt::join(others, ", "));
}

/// Says why it is not known whether the adapter of `folder` was trained, where not it alone fits
/// the optimizer. `names` are the other adapters.
std::string doubt_about(const Path& folder, const std::optional<std::vector<Path>>& fitting,
                        const std::vector<std::string>& names) {
  if (!fitting)
    return fmt::format(
        "the folder has {} too, and the optimizer has no states that tell which of "
        "the adapters was trained",
        fmt::join(names, ", "));
  if (fitting->empty())
    return fmt::format(
        "they have the shapes of no adapter here alone, neither of this one nor of "
        "{}",
        fmt::join(names, ", "));
  std::vector<std::string> others;
  for (const Path& place : *fitting) {
    if (place != folder) others.push_back(place.filename().string());
  }
  if (others.size() == fitting->size())
    return fmt::format("they have the shapes of the adapters {}, and not of this one",
                       fmt::join(others, ", "));
  return fmt::format("the folder has {}", words_on_alike(others));
}

/// Says why none of several adapters is known as the one that the optimizer has trained.
std::string_view words_about(const std::optional<std::vector<Path>>& fitting) {
  if (!fitting) return "no states of the optimizer can be read";
  return fitting->empty() ? "the optimizer's states have the shapes of none of them alone"
                          : "the optimizer's states have the shapes of several";
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
    const Path within = folder / entry.name;
    if (has_adapter(storage, within) || storage.kind(within / kModelConfigs[1]) == EntryKind::File)
      names.push_back(entry.name);
  }
  std::ranges::sort(names);
  return names;
}

ModelPlace find_model(Storage& storage, const Path& folder) {
  const bool is_at_top = has_model_or_config(storage, folder);
  const std::vector<std::string> names = adapter_folders(storage, folder);
  if (names.empty() || (is_at_top && !has_adapter(storage, folder))) return {folder};
  if (!is_at_top && names.size() == 1) return {folder / names.front()};
  std::vector<Path> places;
  if (is_at_top) places.push_back(folder);
  for (const std::string& name : names) places.push_back(folder / name);
  const Path of_trainer = folder / file_names(Program::Trainer).optimizer,
             of_accelerate = folder / file_names(Program::Accelerate).optimizer;
  const bool is_trainers = storage.kind(of_trainer) == EntryKind::File;
  const std::optional<std::vector<Path>> fitting =
      fitting_adapters(storage, is_trainers ? of_trainer : of_accelerate, places);
  if (fitting && fitting->size() == 1) return {fitting->front()};
  if (is_at_top) return {folder, doubt_about(folder, fitting, names), names};
  raise(ErrorCode::Unsupported,
        fmt::format("{} holds the adapters {}, and nothing tells which of them was trained: {}",
                    folder.string(), fmt::join(names, ", "), words_about(fitting)),
        fmt::format("name the folder of one for its weights, such as {}, or move the folders of "
                    "the others away",
                    places.front().string()));
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
