#pragma once
// A copy of what this rank writes, so that training may change the tensors meanwhile. The memory is
// allocated once and reused by later saves. Not thread-safe.
#include "unishard/format/catalog.hpp"
#include "unishard/format/huge_buffer.hpp"
#include "unishard/format/partition.hpp"
#include "unishard/format/shard_writer.hpp"
#include "unishard/trainer/runtime.hpp"

#include "checkpoint/local_state.hpp"
#include "device/pinned_buffers.hpp"
#include "device/pinned_memory.hpp"

#include <c10/core/Stream.h>

#include <cstdint>
#include <future>
#include <memory>
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

/// A part of the state, and where it is copied to.
struct Transfer {
  std::span<std::byte> to;
  LocalTensor from;
};

/// What the engine alone changes is copied while training goes on, on stream Copy: see capture().
class Staging {
 public:
  /// Lifetime: `runtime` must outlive this object.
  explicit Staging(Runtime& runtime) : runtime_(runtime) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Allocates at least `bytes` bytes and touches them, so that capture() causes no page faults,
  /// and pins them for a device. Staged data is lost when the memory must grow. Throws:
  /// std::bad_alloc.
  void reserve(std::uint64_t bytes);
  std::uint64_t capacity_bytes() const { return memory_.bytes().size(); }

  /// Copies what user code can change, and gives stream Copy the copying of the rest, which goes on
  /// until before_change(). Of what is in a file, it keeps the present blocks.
  /// Throws: Internal when this rank does not hold a fragment; NoSpace when there is no room for
  /// the blocks that training writes meanwhile.
  void capture(const LocalState& local, const Catalog& catalog,
               const std::vector<Fragment>& fragments);
  /// Makes Compute wait for the copies. The engine calls it before it changes its state.
  void before_change();
  /// Writes fragment `index` of the last capture() to `writer`, when the copies are done. Called by
  /// the threads of a save.
  void give(ShardWriter& writer, std::size_t index) const;
  /// Forgets what capture() has kept in files, so that their space can be used.
  void release() { in_files_.clear(); }

 private:
  void copy_behind(std::vector<Transfer> transfers);
  void wait_for_copies() const;
  void finish_copies() const noexcept;

  Runtime& runtime_;
  HugeBuffer memory_;
  std::optional<PinnedMemory> pinned_;
  StagingPlan plan_;                   ///< of the last capture()
  std::vector<LocalTensor> in_files_;  ///< one for each fragment; empty where it is in the memory
  EventPtr copied_;                    ///< until Compute has waited for it
  /// Ready when the copies are done or, on a device, have been given to its stream.
  std::shared_future<std::optional<c10::Stream>> copies_;
};

/// Returns the bytes of a fragment in this rank's own tensors.
/// Throws: Internal when the rank does not hold them.
LocalTensor locate(const LocalState& local, const Catalog& catalog, const Fragment& fragment);

/// Writes fragment `index` of `writer`, whose elements are `tensor`, a few at a time if they are in
/// a file or on a device. Those of a device go through one of `buffers`.
void give_local(ShardWriter& writer, std::size_t index, const LocalTensor& tensor,
                PinnedBuffers& buffers);

}  // namespace unishard::trainer::detail
