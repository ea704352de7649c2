#include "formats/trainer/folder.hpp"

#include "formats/safetensors/model_folder.hpp"

namespace unishard::converters::trainer {

FileNames file_names(Program program) {
  if (program == Program::Trainer) return {"trainer", "optimizer.pt", "scheduler.pt"};
  return {"accelerate", "optimizer.bin", "scheduler.bin"};
}

bool has_torch_model(Storage& storage, const Path& folder) {
  return storage.kind(folder / "pytorch_model.bin") == EntryKind::File ||
         storage.kind(folder / "pytorch_model.bin.index.json") == EntryKind::File;
}

std::optional<Program> find_program(Storage& storage, const Path& folder) {
  if (storage.kind(folder) != EntryKind::Directory) return std::nullopt;
  for (const Program program : {Program::Trainer, Program::Accelerate}) {
    if (storage.kind(folder / file_names(program).optimizer) != EntryKind::File) continue;
    if (has_torch_model(storage, folder) || safetensors::is_model_folder(storage, folder))
      return program;
  }
  return std::nullopt;
}

}  // namespace unishard::converters::trainer
