#pragma once
// How files of other programs name and store the weights of a model. The model declares it (see
// gpt_foreign_names()); the engine applies it when it loads what UniShard did not save. A value.
#include <string>
#include <vector>

namespace unishard::trainer {

struct ForeignNames {
  /// Taken off, repeatedly, from a name that the model does not have: "transformer.".
  std::vector<std::string> prefixes = {};
  /// Shell patterns, without prefixes, of tensors that are no state of the model: mask buffers.
  std::vector<std::string> ignored = {};
  /// Shell patterns of the model's matrices that some programs store as their transpose. A file is
  /// taken to store all of them alike; those that are not square tell how.
  std::vector<std::string> transposable = {};
};

}  // namespace unishard::trainer
