#pragma once
// Decides which rank owns which elements. The trainer (for its memory), the save and reshard use
// the same functions, so a checkpoint resharded to (W, stage) has the shards that a trainer of that
// world size and stage would have written.
//
// Flat layout of a unit: its trained parameters in order, each starting at a multiple of kSlotAlign
// elements; the unit's length is the end of the last slot rounded up to kSlotAlign. Rank r of W
// owns the flat elements [r*S, (r+1)*S) with S = ceil(length / W) rounded up to kShardBlock.
// Offsets do not depend on W, so changing W only changes where the vector is cut. The frozen
// parameters of a unit form one more such vector for each of their types, which is cut at stage 3.
//
// Thread safety: values and pure functions.
#include "unishard/format/box.hpp"
#include "unishard/format/catalog.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unishard {

inline constexpr std::uint64_t kSlotAlign = 16;     ///< elements
inline constexpr std::uint64_t kShardBlock = 1024;  ///< elements

/// The place of one parameter in the flat vector, in elements.
struct FlatSlot {
  std::uint64_t offset = 0;  ///< first element
  std::uint64_t elements = 0;
};

struct FlatLayout {
  std::vector<FlatSlot> slots;  ///< one slot per parameter, in order
  std::uint64_t length = 0;     ///< elements, including gaps

  /// Returns S above, in elements.
  /// Pre: world_size > 0.
  std::uint64_t shard_length(std::uint32_t world_size) const;
  /// Returns the elements of parameter `index` that `rank` owns; may be empty.
  /// Pre: index < slots.size() and world_size > 0.
  ElementRange owned(std::size_t index, std::uint32_t rank, std::uint32_t world_size) const;
};

/// Returns the layout of a unit whose parameters have these element counts.
/// Throws: Corrupt on overflow.
FlatLayout flat_layout(std::span<const std::uint64_t> parameter_elements);

/// The part of a tensor that one shard stores: a range, or a box.
struct Fragment {
  std::uint32_t tensor = 0;  ///< index into Catalog::tensors
  ElementRange range;        ///< of a box: the bounds of its elements (ElementMap::bounds())
  std::shared_ptr<const Box> box = nullptr;  ///< null: the fragment is the range

  /// Returns a fragment that is a box.
  /// Pre: box_problem(tensor.shape, box) is nullopt.
  static Fragment of_box(std::uint32_t number, const TensorInfo& tensor, Box box);
  bool operator==(const Fragment& other) const;
};

/// Returns the bytes of the fragments' elements, without padding.
/// Pre: no fragment is a box.
std::uint64_t bytes_of(const Catalog& catalog, std::span<const Fragment> fragments);

/// Computes for each rank of catalog.world_size the fragments that it writes at catalog.stage,
/// sorted by (tensor, begin) and without empty ranges. Over all ranks, every element of every
/// tensor occurs exactly once.
/// At stage >= 1 the states of trained parameters in a unit follow the flat layout, and at stage 3
/// those of frozen ones too. Everything else (buffers, frozen weights below stage 3, all of stage
/// 0, tensors outside any unit) is replicated data and written once: it is spread over the ranks in
/// contiguous ranges of about equal bytes, cut at multiples of kShardBlock elements.
class ShardPlans {
 public:
  /// Lifetime: `catalog` must outlive this object.
  /// Complexity: O(tensors).
  explicit ShardPlans(const Catalog& catalog);
  ~ShardPlans();
  ShardPlans(const ShardPlans&) = delete;
  ShardPlans& operator=(const ShardPlans&) = delete;

  /// Returns the fragments of `rank`. Thread-safe.
  /// Complexity: O(u log p + f log f) for u units of p parameters and f fragments of this rank.
  std::vector<Fragment> shard(std::uint32_t rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns ShardPlans(catalog).shard(rank). Use ShardPlans for several ranks.
std::vector<Fragment> plan_shard(const Catalog& catalog, std::uint32_t rank);

}  // namespace unishard
