#pragma once
// What the content of a file says about other files that belong to it.
#include "unishard/format/storage.hpp"

#include "containers/pickle.hpp"

#include <optional>
#include <string>

namespace unishard::converters {

/// Returns what a torch.save file is a part of, as the arguments of the training in it say (`args`
/// of Megatron-LM, `hyper_parameters` of NeMo): "part of a parallel model: it was
/// saved with tensor_model_parallel_size 2". Returns nullopt where nothing says so.
std::optional<std::string> describe_part(torch::Value root);

/// What one file of a DeepSpeed run is a part of.
struct RunPart {
  std::string words;  ///< as Source::part_of() has them
  /// False where its tensors are flat groups of an optimizer, and no weights of a model.
  bool holds_weights = true;
};

/// Returns what a torch.save file is a part of where DeepSpeed wrote it: the optimizer's file of a
/// rank, a file of a universal checkpoint, or a model's file whose masters, experts, layers or
/// ranks are in others. Returns nullopt for other files, and for the model's file of stage 0, which
/// holds all. The file's name counts where its content is that of many others.
std::optional<RunPart> describe_run_part(Storage& storage, const Path& path, torch::Value root);

}  // namespace unishard::converters
