#pragma once
// A copy of what this rank writes, so that training may change the tensors while they are written.
// The memory is allocated once and used again by every later save. One thread at a time.
#include "unishard/format/catalog.hpp"
#include "unishard/format/huge_buffer.hpp"
#include "unishard/format/partition.hpp"
#include "unishard/format/shard_writer.hpp"

#include "checkpoint/local_state.hpp"
#include "device/device_copies.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace unishard::trainer::detail {

/// Where the fragments lie in the memory. Derived 16-bit weights have no bytes of their own where
/// their fp32 master is staged too: they are rounded from it when they are written.
struct StagingPlan {
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    bool is_master = false;  ///< fp32 elements whose rounding is the fragment
  };
  std::vector<Place> places;  ///< one for each fragment
  std::uint64_t bytes = 0;
};

/// Pure. `fragments` as plan_shard() returns them.
StagingPlan plan_staging(const LocalState& local, const Catalog& catalog,
                         std::span<const Fragment> fragments);

class Staging {
 public:
  /// Makes sure of `bytes` bytes, and touches them, so that a copy meets no page faults. What was
  /// staged is lost when the memory must grow. Throws std::bad_alloc.
  void reserve(std::uint64_t bytes);
  std::uint64_t capacity_bytes() const { return memory_.bytes().size(); }

  /// Copies the fragments, with several threads, and what is on a device on a stream of its own.
  /// Throws Internal when this rank does not hold one.
  void capture(const LocalState& local, const Catalog& catalog,
               const std::vector<Fragment>& fragments);
  /// Gives fragment `index` of the last capture() to the writer.
  void give(ShardWriter& writer, std::size_t index) const;

 private:
  HugeBuffer memory_;
  std::optional<PinnedMemory> pinned_;  ///< of all of it, once a tensor came from a device
  StagingPlan plan_;                    ///< of the last capture()
};

/// The bytes of a fragment in this rank's own tensors. Throws Internal when it does not hold them.
LocalTensor locate(const LocalState& local, const Catalog& catalog, const Fragment& fragment);

}  // namespace unishard::trainer::detail
