#pragma once
// Parameters that transformers 5 holds fused in memory, and that the files of the model hold in
// parts: the experts of a layer are one tensor of the module, and one tensor each in
// model.safetensors. Optimizer states have the shape of the module's parameter.
// Thread safety: immutable values.
#include "unishard/format/tensor_info.hpp"

#include "containers/boxes.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// How one kind of parameter is called in the module and in the files. A name ends with these
/// words. `*` is the number of an expert: the parameter stacks what the experts have, and where the
/// files have two tensors for each expert, they follow each other in dimension 1. Without `*` the
/// files have the parameter as it is, under another name.
struct FusedRule {
  std::string_view module;
  std::string_view file;
  std::string_view second_file = {};  ///< empty: there is one
};

/// A tensor of the model's files: elements `range` of the module's parameter.
struct FilePart {
  std::string name;
  Shape shape;
  ElementRange range;
};

/// The place of a tensor of the files in the parameter of the module.
struct ModulePlace {
  std::string parameter;
  Shape shape;  ///< of the parameter
  Box box;
};

/// A name and a shape of a tensor.
struct ShapedName {
  std::string name;
  Shape shape;
};

class FusedParameters {
 public:
  /// Returns what is known of a `model_type` of config.json; nullopt where nothing is fused, or
  /// where the type is not known.
  static std::optional<FusedParameters> of(std::string_view model_type);

  /// Returns whether the name is that of a parameter that stacks experts. A module that has none is
  /// not transformers 5's, and has the names of the files.
  bool are_experts(std::string_view parameter) const;
  /// Returns what the files have of a parameter of the module, in the order of its elements; empty
  /// where they have it as it is.
  std::vector<FilePart> parts(std::string_view parameter, const Shape& shape) const;
  /// Returns the place of each tensor of the files; nullopt for a tensor that the module has as it
  /// is, and for one of experts that are not all there.
  std::vector<std::optional<ModulePlace>> places(std::span<const ShapedName> files) const;

 private:
  bool is_of_rule(std::string_view file) const;
  FusedParameters(std::span<const FusedRule> rules, std::string_view module_start,
                  std::string_view file_start)
      : rules_(rules), module_start_(module_start), file_start_(file_start) {}

  // Parts of a table that is never destroyed.
  std::span<const FusedRule> rules_;
  std::string_view module_start_, file_start_;  // of all names; empty: they are the same
};

}  // namespace unishard::converters
