#pragma once
// The files of a checkpoint of Hugging Face's Trainer (`checkpoint-500`) or of accelerate
// (`save_state`): a model, an optimizer, a schedule. Everything else in the folder is copied by the
// tools and read by nobody.
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::trainer {

enum class Program : std::uint8_t { Trainer, Accelerate };

/// The names by which a program finds its state.
struct FileNames {
  std::string_view format;   ///< name of registry.hpp
  std::string_view library;  ///< in Catalog::producer
  std::string_view optimizer, scheduler;
};
FileNames file_names(Program program);

inline constexpr std::string_view kTrainerState = "trainer_state.json";

/// Returns the program that wrote the checkpoint `folder`; nullopt unless it has a model and an
/// optimizer in files of their own.
std::optional<Program> find_program(Storage& storage, const Path& folder);

/// The model of a folder. PEFT saves an adapter that is not called "default" in a folder
/// of its name below a Trainer's checkpoint.
struct ModelPlace {
  Path folder;
  /// Why it is not known whether the optimizer has trained the adapter there; empty where it is.
  std::string doubt = {};
  std::vector<std::string> others = {};  ///< the other adapters, where there is a doubt
};
/// Returns `folder`, or the folder in it with the only adapter. Of several it is the one whose
/// shapes the optimizer's states have, else that of `folder`, with a doubt.
/// Throws: Unsupported, naming them, where nothing decides and `folder` has none.
ModelPlace find_model(Storage& storage, const Path& folder);
/// Returns the names of the folders in `folder` that hold an adapter, or have lost it: they have
/// its configuration.
std::vector<std::string> adapter_folders(Storage& storage, const Path& folder);

/// Returns the files that torch.save wrote of the model: pytorch_model.bin, whole or sharded, or
/// adapter_model.bin; empty without any. `notes` receives a line when names alone join them.
/// Throws: Corrupt, naming an index that cannot be read.
std::vector<std::string> torch_model_files(Storage& storage, const Path& folder,
                                           std::vector<std::string>& notes);
/// Returns the path of the index by which torch_model_files() finds them; nullopt where it needs
/// none.
std::optional<Path> torch_model_index(Storage& storage, const Path& folder);
/// Returns whether there are any, without reading an index.
bool has_torch_model(Storage& storage, const Path& folder);

}  // namespace unishard::converters::trainer
