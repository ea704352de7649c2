#pragma once
// The arrangements of keys that UniShard's own sink can give a DCP folder, each that of a kind of
// training scripts.
#include "formats/dcp/metadata.hpp"

#include <span>
#include <string>
#include <string_view>

namespace unishard::converters::dcp {

struct OwnLayout {
  std::string_view name;
  KeyPath model, optimizer;  ///< the outer keys of both
  /// A state's key is one part of the path, and every parameter has its settings, as with
  /// flatten_optimizer_state_dict.
  bool is_flat = false;
  bool has_train_state = false;  ///< the number of steps is also at train_state.step

  /// Returns the key of `name` in the model, and below the optimizer.
  std::string model_key(std::string_view name) const;
  std::string optimizer_key(std::string_view name) const;
};

/// Returns all layouts; the first is the default.
std::span<const OwnLayout> own_layouts();
/// Throws: InvalidArgument for an unknown name; "" is the default.
const OwnLayout& own_layout(std::string_view name);

/// Returns the parts of a path, joined by ".".
std::string joined(const KeyPath& path);

}  // namespace unishard::converters::dcp
