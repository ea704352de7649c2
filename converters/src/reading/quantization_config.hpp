#pragma once
// What the quantization_config of a model's config.json says.
#include "unishard/format/dtype.hpp"
#include "unishard/format/json.hpp"

#include "reading/compressed_tensors.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters {

/// Rows and columns that share a scale.
struct BlockSize {
  std::uint64_t rows = 0, columns = 0;
  bool operator==(const BlockSize&) const = default;
};

struct QuantizationConfig {
  bool is_given = false;
  std::string method;  ///< "fp8", "bitsandbytes", ...; empty when it names none
  /// The sizes of blocks of its weights, each once; empty when it names none. A group of
  /// compressed-tensors is a block of one row.
  std::vector<BlockSize> blocks;
  bool is_of_blocks = false;  ///< weight_block_size: each quantized weight has scales of its blocks
  /// Which weights of compressed-tensors have zero points, as its groups say: all, or those of some
  /// modules, the same in all layers.
  enum class ZeroPoints { Unknown, SameInAllLayers, Everywhere };
  ZeroPoints zero_points = ZeroPoints::Unknown;
  DeclaredWeights declared;  ///< by compressed-tensors
  std::string problem;       ///< why its block sizes make no sense; empty when they do
  /// The type in whose name bitsandbytes stores packed 4-bit numbers; nullopt: none are expected.
  std::optional<DType> packed_type;
};

/// Throws nothing: a configuration of another form than expected says nothing.
QuantizationConfig parse_quantization_config(const Json& config);

}  // namespace unishard::converters
