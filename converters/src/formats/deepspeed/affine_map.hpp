#pragma once
// `universal_checkpoint_info.affine_map`, which AutoTP writes since DeepSpeed 0.19.8: for each rank
// the pieces of a parameter, each as the arguments of torch.as_strided on the whole parameter
// (source) and on the rank's shard (dest).
#include "formats/deepspeed/name_pattern.hpp"
#include "formats/deepspeed/pickle_fields.hpp"
#include "formats/deepspeed/tensor_cut.hpp"

#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// Lifetime: the pickle of its value must outlive it.
class AffineMap {
 public:
  /// Throws: Unsupported, naming the version, for a map newer than version 1; Corrupt.
  explicit AffineMap(Value map);
  /// Returns the cut of parameter `fqn`; nullopt when the map does not describe it.
  /// Throws: Corrupt for a map that contradicts itself or the shards; Unsupported for pieces that
  /// are no boxes or are scaled.
  std::optional<TensorCut> cut_of(const std::string& fqn, const CutContext& context) const;

 private:
  std::vector<Value> entries_;
  NamePatterns patterns_;
};

}  // namespace unishard::converters::deepspeed
