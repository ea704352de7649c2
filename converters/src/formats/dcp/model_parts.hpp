#pragma once
// Finds the part of a model that an optimizer trains whose names begin inside of it.
// Thread safety: pure functions.
#include "formats/dcp/raw_names.hpp"

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

/// The parameters of an optimizer by their names, with their shapes as far as they are known.
using ClaimedShapes = std::map<std::string, std::optional<Shape>>;

struct ModelPart {
  /// The names in the model of the parameters that have others there.
  std::unordered_map<std::string, std::string> names;
  /// Parts that fit equally well, so that no parameter has another name; "encoder." first.
  std::vector<std::string> undecided;
};

/// Returns how the model calls the parameters of an optimizer. An optimizer over `model.encoder`
/// has names without "encoder.": the part that has most of the names, then most of the shapes, then
/// a name like the optimizer's key is its own. Names that the model has count first.
ModelPart find_part(const ClaimedShapes& parameters, const std::vector<NamedShape>& model,
                    std::string_view optimizer_prefix);

}  // namespace unishard::converters::dcp
