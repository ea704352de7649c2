#pragma once
// A copy of what this rank writes, so that training may change the tensors meanwhile. The memory is
// allocated once and reused by later saves. Not thread-safe.
#include "unishard/format/catalog.hpp"
#include "unishard/format/huge_buffer.hpp"
#include "unishard/format/partition.hpp"
#include "unishard/format/shard_writer.hpp"

#include "checkpoint/local_state.hpp"
#include "device/pinned_buffers.hpp"
#include "device/pinned_memory.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace unishard::trainer::detail {

/// The location of the fragments in the memory. A derived 16-bit fragment whose fp32 master is
/// staged too has no bytes of its own: it is rounded from the master when it is written.
struct StagingPlan {
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    bool is_master = false;         ///< fp32 elements whose rounding is the fragment
    bool is_in_file = false;        ///< it stays there, and has no place in the memory
    DType dtype = DType::BFloat16;  ///< of that rounding
  };
  std::vector<Place> places;  ///< one for each fragment
  std::uint64_t bytes = 0;
};

/// Pure function. `fragments` come from plan_shard().
StagingPlan plan_staging(const LocalState& local, const Catalog& catalog,
                         std::span<const Fragment> fragments);

class Staging {
 public:
  /// `device` is the one that the model computes on.
  explicit Staging(at::Device device) : device_(device) {}

  /// Allocates at least `bytes` bytes and touches them, so that capture() causes no page faults,
  /// and pins them for a device. Staged data is lost when the memory must grow. Throws:
  /// std::bad_alloc.
  void reserve(std::uint64_t bytes);
  std::uint64_t capacity_bytes() const { return memory_.bytes().size(); }

  /// Copies the fragments with several threads; data on a device is copied on a separate stream. Of
  /// what is in a file, it keeps the present blocks.
  /// Throws: Internal when this rank does not hold a fragment; NoSpace when there is no room for
  /// the blocks that training writes meanwhile.
  void capture(const LocalState& local, const Catalog& catalog,
               const std::vector<Fragment>& fragments);
  /// Writes fragment `index` of the last capture() to `writer`.
  void give(ShardWriter& writer, std::size_t index) const;
  /// Forgets what capture() has kept in files, so that their space can be used.
  void release() { in_files_.clear(); }

 private:
  at::Device device_;
  HugeBuffer memory_;
  std::optional<PinnedMemory> pinned_;
  StagingPlan plan_;                   ///< of the last capture()
  std::vector<LocalTensor> in_files_;  ///< one for each fragment; empty where it is in the memory
};

/// Returns the bytes of a fragment in this rank's own tensors.
/// Throws: Internal when the rank does not hold them.
LocalTensor locate(const LocalState& local, const Catalog& catalog, const Fragment& fragment);

/// Writes fragment `index` of `writer`, whose elements are `tensor`, a few at a time if they are in
/// a file or on a device. Those of a device go through one of `buffers`.
void give_local(ShardWriter& writer, std::size_t index, const LocalTensor& tensor,
                PinnedBuffers& buffers);

}  // namespace unishard::trainer::detail
