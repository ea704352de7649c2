#pragma once
// Weights that an optimizer trains by numbers and that no file of the model holds.
// Thread safety: pure functions.
#include "unishard/converters/loss.hpp"
#include "unishard/format/tensor_info.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::dcp {

/// The name of the loss.
inline constexpr std::string_view kUnnamedWeight = "a parameter without a name";

/// The shapes of what an optimizer trains and of what there is.
struct TrainedShapes {
  std::vector<Shape> numbered = {};   ///< parameters with states, of which only numbers are known
  std::vector<Shape> model = {};      ///< tensors of the model that may be trained
  std::vector<Shape> elsewhere = {};  ///< other tensors of the files
  /// The optimizer may train modules beside the model: a loss with weights, a second model.
  bool may_train_others = false;
};

/// A weight that is missing for certain, or a remark on one that may be.
struct UnnamedWeights {
  std::optional<Loss> loss = {};
  std::optional<std::string> remark = {};
};

/// Returns what the counts say. A weight is missing for certain where the optimizer has more
/// parameters than the model has tensors, and more elements too: a file may hold several parameters
/// as one tensor. Single numbers are often those of a loss, which no file of the model holds.
UnnamedWeights find_unnamed_weights(const TrainedShapes& shapes);

}  // namespace unishard::converters::dcp
