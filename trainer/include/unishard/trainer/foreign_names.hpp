#pragma once
// Names and layouts of a model's weights in files of other programs. The model provides them (see
// model_foreign_names()); the engine uses them when it loads a checkpoint that UniShard did not
// save.
#include <string>
#include <vector>

namespace unishard::trainer {

struct ForeignNames {
  /// Prefixes such as "transformer." that are removed, repeatedly, from a name that the model does
  /// not have.
  std::vector<std::string> prefixes = {};
  /// Prefix that the file of a part of the model lacks, such as "model." of a base model that was
  /// saved without its head; it is added to a name that the model does not have otherwise.
  std::string missing_prefix = {};
  /// Shell patterns, without prefixes, of tensors that are no state of the model, such as mask
  /// buffers.
  std::vector<std::string> ignored = {};
  /// Shell patterns of the matrices that some programs store transposed. A file is assumed to store
  /// all of them in the same way, which the shapes of those that are not square reveal.
  std::vector<std::string> transposable = {};
};

}  // namespace unishard::trainer
