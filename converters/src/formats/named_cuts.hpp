#pragma once
// How tensor parallelism cut the tensors of a model of which the names tell it.
#include "unishard/format/json.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace unishard::converters {

enum class NamedCut : std::uint8_t {
  Whole,       ///< every rank has all of it
  Rows,        ///< dimension 0 is cut
  Columns,     ///< dimension 1 is cut
  TwoHalves,   ///< two tensors, one behind the other, each cut in dimension 0
  Vocabulary,  ///< dimension 0 is cut, and may have rows of padding at its end
};

/// A name that has the number of a layer.
struct LayerName {
  std::string_view before;  ///< up to `layers.`
  std::uint64_t layer = 0;
  std::string_view local;  ///< what follows the number and its dot
};
/// Returns nullopt for a name without such a number, or where it is one that no model has.
std::optional<LayerName> parse_layer_name(std::string_view name);

/// Returns the rules for tensors of these names, with the keys of universal_checkpoint_info, where
/// the vocabulary has so many rows without padding. Layers share their rules.
Json cut_patterns(const std::map<std::string, NamedCut>& tensors,
                  std::optional<std::uint64_t> vocabulary = {});

}  // namespace unishard::converters
