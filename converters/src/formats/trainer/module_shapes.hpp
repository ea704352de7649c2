#pragma once
// Decides whether the parameters that a Trainer trained are the tensors of its files, or are made
// of several of them. The states of the optimizer have the module's shapes.
#include "containers/torch_file.hpp"
#include "formats/dcp/safetensors_pieces.hpp"
#include "reading/fused_parameters.hpp"

#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

namespace unishard::converters::trainer {

/// Returns how many parameters the groups of an optimizer's state list.
std::size_t count_parameters(torch::Value optimizer);

class ModuleShapes {
 public:
  /// `optimizer` is the file of the optimizer; null where there is none that can be read.
  ModuleShapes(std::string_view model_type, const torch::TorchFile* optimizer);

  /// Returns where the pieces, each a whole tensor of the files, lie in the module's parameters;
  /// nullopt for each that is a parameter itself.
  std::vector<std::optional<ModulePlace>> places(
      std::span<const dcp::SafetensorsPiece> pieces) const;

 private:
  bool has_trained(const std::vector<std::optional<ModulePlace>>& places) const;

  std::optional<FusedParameters> fused_;
  std::set<Shape> states_;      ///< shapes of the optimizer's states
  std::size_t parameters_ = 0;  ///< number of the optimizer's parameters
};

}  // namespace unishard::converters::trainer
