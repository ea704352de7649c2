#pragma once
// What the configuration of compressed-tensors says of the weights that it describes, and weights
// that contradict it. A value that the groups of the configuration do not share says nothing.
// Thread safety: values and pure functions, apart from what they read of the source.
#include "unishard/format/json.hpp"
#include "unishard/format/tensor_info.hpp"

#include "reading/named_tensors.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace unishard::converters {

struct DeclaredWeights {
  /// The "strategy": how many scales a matrix has.
  enum class Scales : std::uint8_t {
    Unknown,
    One,
    Rows,    ///< one for each row ("channel")
    Groups,  ///< one for each `group_size` columns of a row
  };
  Scales scales = Scales::Unknown;
  std::uint64_t group_size = 0;
  std::string type;                         ///< "int" or "float"
  bool is_symmetric = false;                ///< no weight has zero points
  std::string packed_format;                ///< the format, where its weights are packed numbers
  std::unordered_set<std::string> ignored;  ///< modules that are not quantized
};

/// Returns the text at a key of an object; empty where there is none.
std::string text_at(const Json& object, const char* key);

/// Returns the descriptions of weights in the groups of a configuration; other groups describe
/// activations only.
std::vector<Json> weights_of_groups(const Json& config);

/// Throws nothing: a configuration of another form than expected says nothing.
DeclaredWeights declared_weights(const Json& config);

/// Checks that a weight of narrow numbers, beside which `scales` and `zero_points` lie, is what the
/// configuration says. Zero points of a symmetric weight may all be 0.
/// Throws: Corrupt, naming the weight, when it is not.
void require_declared(const DeclaredWeights& declared, const NamedTensors& tensors,
                      const TensorInfo& weight, std::size_t scales,
                      std::optional<std::size_t> zero_points);

}  // namespace unishard::converters
