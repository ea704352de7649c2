#pragma once
// A source whose tensors were cut among several sources, as tensor parallelism cuts them: each
// shard has boxes of the whole tensor, all of it, or a value of which the mean counts.
#include "unishard/converters/source.hpp"

#include "containers/boxes.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// A box of a whole tensor, and where the shards have it.
struct SharedBox {
  struct Copy {
    std::uint32_t shard = 0;
    Shape offsets;  ///< of the box in the shard's tensor
  };
  Box whole;
  std::vector<Copy> copies;  ///< at least one; their elements must have the same bits
};

struct JoinedTensor {
  std::vector<std::size_t> tensors;  ///< its number in the catalog of each shard
  /// The boxes, none of them empty, cover the tensor exactly; null when the tensor is the mean of
  /// the shards' tensors, which have its shape.
  std::shared_ptr<const std::vector<SharedBox>> boxes;
};

struct JoinedCatalog {
  std::string format;
  /// A derived tensor whose `boxes` are null is rounded from the mean of its fqn's fp32 state.
  Catalog catalog;
  std::vector<JoinedTensor> tensors;  ///< for each tensor of the catalog
  Losses losses;
  std::vector<std::string> notes, remarks;
  Json cut_rules = {};                                    ///< Source::cut_rules()
  std::string_view shards_are = "tensor-parallel ranks";  ///< what messages call the shards
  /// Number of the rank `rank` of shard `shard` among the ranks of all shards.
  std::uint32_t (*rank_of)(std::uint32_t shard, std::uint32_t rank, std::size_t shards) = nullptr;
};

/// Returns a thread-safe source. Its reads compare the copies of a box, unless the checksums of the
/// input are ignored. `where` is the checkpoint that messages name.
/// Pre: at least one shard; every box lies inside the tensors that it is a box of.
/// Throws: Unsupported for the mean of tensors that are not float32 or float64.
std::unique_ptr<Source> make_joined_source(JoinedCatalog joined,
                                           std::vector<std::unique_ptr<Source>> shards,
                                           const std::string& where);

}  // namespace unishard::converters
