#pragma once
// Who owns what. Pure arithmetic, shared by the trainer (which lays its memory out by it), the save
// planner and reshard, so that a checkpoint resharded to (W, stage) has the shards that a trainer
// of that world size and stage would have written. No I/O; any thread.
//
// Flat layout of a unit: its parameters in order, each starting at a multiple of kSlotAlign
// elements; the unit's length is the end of the last slot rounded up to kSlotAlign. Rank r of W
// owns flat elements [r*S, (r+1)*S) with S = ceil(length / W) rounded up to kShardBlock. Offsets do
// not depend on W, so going to another W is slicing.
#include "unishard/format/catalog.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unishard {

inline constexpr std::uint64_t kSlotAlign = 16;     ///< elements
inline constexpr std::uint64_t kShardBlock = 1024;  ///< elements

struct FlatSlot {
  std::uint64_t offset = 0;  ///< of the parameter's first element in the flat vector
  std::uint64_t elements = 0;
};

struct FlatLayout {
  std::vector<FlatSlot> slots;  ///< one per parameter, in order
  std::uint64_t length = 0;     ///< elements, gaps included

  /// S above. Pre: world_size > 0.
  std::uint64_t shard_length(std::uint32_t world_size) const;
  /// What `rank` owns of slot `index`, in elements of that parameter; may be empty.
  ElementRange owned(std::size_t index, std::uint32_t rank, std::uint32_t world_size) const;
};

FlatLayout flat_layout(std::span<const std::uint64_t> parameter_elements);

/// A part of a tensor that one shard stores.
struct Fragment {
  std::uint32_t tensor = 0;  ///< index into Catalog::tensors
  ElementRange range;
  bool operator==(const Fragment&) const = default;
};

/// Of their elements, without padding.
std::uint64_t bytes_of(const Catalog& catalog, std::span<const Fragment> fragments);

/// What each rank of catalog.world_size writes at catalog.stage, sorted by (tensor, begin); empty
/// ranges are left out. At stage >= 1 the states of parameters that are in a unit follow the flat
/// layout; everything else (buffers, frozen weights, all of stage 0, tensors outside any unit) is
/// replicated data that is written once, spread over the ranks in contiguous, byte-balanced runs
/// cut at multiples of 1024 elements. Over all ranks every element of every tensor occurs exactly
/// once.
class ShardPlans {
 public:
  /// O(tensors). The catalog must outlive this.
  explicit ShardPlans(const Catalog& catalog);
  ~ShardPlans();
  ShardPlans(const ShardPlans&) = delete;
  ShardPlans& operator=(const ShardPlans&) = delete;

  /// O(u log p + f log f) for u units of p parameters and f fragments of this rank. Thread-safe.
  std::vector<Fragment> shard(std::uint32_t rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// ShardPlans(catalog).shard(rank), for one rank.
std::vector<Fragment> plan_shard(const Catalog& catalog, std::uint32_t rank);

}  // namespace unishard
