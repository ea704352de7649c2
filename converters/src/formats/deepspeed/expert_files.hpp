#pragma once
// The experts of DeepSpeed's own mixture of experts. Each has a file of its own with the number
// that it has in its layer.
#include "formats/deepspeed/module_files.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

/// The parts of "<path>.deepspeed_moe.experts.deepspeed_experts.<number>.<local>".
struct ExpertName {
  std::string_view prefix;  ///< up to the number
  std::uint32_t number = 0;
  std::string_view local;  ///< begins with "."

  std::string with_number(std::uint64_t other) const;
};
/// Returns nullopt for other names.
std::optional<ExpertName> split_expert(std::string_view fqn);

/// A layer with experts.
struct ExpertLayer {
  std::string prefix;  ///< of its experts' names
  std::uint64_t experts = 0;
};

struct ExpertFiles {
  std::vector<ModuleFile> files;                           ///< ascending layers, then experts
  std::vector<ExpertLayer> layers;                         ///< ascending
  std::vector<std::pair<std::uint32_t, Path>> optimizers;  ///< by expert rank, of stage 0

  /// Returns null when no layer has the prefix.
  const ExpertLayer* find(std::string_view prefix) const;
};

/// Reads the files of all experts. `model` is the model file, whose num_experts they are compared
/// with.
/// Throws: Corrupt, naming what is missing, doubled or in another's place.
ExpertFiles read_expert_files(const std::shared_ptr<FilePool>& pool, const TagFiles& files,
                              const TorchFile& model, Notes& notes);

}  // namespace unishard::converters::deepspeed
