#pragma once
// How large a model is, from what people have of it.
// Thread safety: pure functions, and a reader.
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

#include <cstdint>
#include <string_view>

namespace unishard::tools {

struct ModelSize {
  std::uint64_t parameters = 0;     ///< tied ones count once
  std::uint64_t largest_layer = 0;  ///< parameters of the largest module, as DeepSpeed counts them
  /// Parameters of what UniShard's trainer gathers at a time: a layer with all of its modules, or
  /// everything that is in no layer. 0 when it is not known.
  std::uint64_t largest_unit = 0;
  std::uint64_t matrices = 0;  ///< parameters that Muon updates; 0 when they are not known
  // For activations; 0 when they are not known.
  std::uint64_t layers = 0, hidden = 0, vocabulary = 0;
  bool is_adapter = false;  ///< alone: its base model is not counted
};

/// Returns the size of the model that transformers builds from a config.json.
/// Throws: InvalidArgument for another model_type, and for a config without a number that it needs.
ModelSize model_size_of_config(const Json& config, std::string_view where);

/// Returns the size of the model in a checkpoint. A layer is what has the same name up to the last
/// dot, and a unit what has the same name up to its first number.
ModelSize model_size_of_catalog(const Catalog& catalog);

}  // namespace unishard::tools
