#pragma once
// The ranks of a DeepSpeed run that is parallel beside ZeRO, for which its ordinary folder is
// written.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters {

/// The numbers of the layers of a pipeline that use one module, a TiedLayerSpec of DeepSpeed.
struct TiedLayers {
  std::string key;
  std::vector<std::uint32_t> layers;
};

/// Thread safety: a value.
struct ParallelRanks {
  /// Tensor-parallel ranks; nullopt: whole tensors, as a run without tensor parallelism has them.
  std::optional<std::uint32_t> tensor = {};
  /// The rows of a vocabulary get padding to a multiple of this number times the tensor-parallel
  /// ranks, as Megatron's --make-vocab-size-divisible-by; nullopt: 1.
  std::optional<std::uint32_t> vocabulary_multiple = {};
  /// Stages of a pipeline; nullopt: no pipeline, or what `parts` tells.
  std::optional<std::uint32_t> stages = {};
  /// The first layer of each stage, then the number of layers: PipelineModule.parts of DeepSpeed.
  /// Empty: as its partition_method "parameters" divides the layers.
  std::vector<std::uint32_t> parts = {};
  std::vector<TiedLayers> tied = {};  ///< of each tied module

  bool has_pipeline() const { return stages.has_value() || !parts.empty(); }
  /// Returns whether a folder has other files than that of a run with ZeRO alone.
  bool any() const { return tensor.has_value() || has_pipeline(); }
};

}  // namespace unishard::converters
