#pragma once
// A communicator of NCCL that never blocks, and the thread that watches it. NCCL's kernels wait for
// other ranks without end, so the thread looks for errors and at the time while the host waits for
// the device.
#include "unishard/format/error.hpp"

#include "comm/operation_scope.hpp"
#include "device/cuda_stream.hpp"

#include <c10/core/Event.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace unishard::trainer::detail {

/// Returns true for success and for what a communicator that does not block says meanwhile.
inline bool is_fine(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}
/// Throws: PeerFailed, Io unless is_fine(result).
void check(ncclResult_t result, const char* what);

/// Thread-safe.
class NcclHandle {
 public:
  /// Joins the group with this rank's device, the current one of the thread. Collective.
  /// Throws: PeerFailed, also after the timeout; Io.
  NcclHandle(const ncclUniqueId& id, std::uint32_t rank, std::uint32_t size,
             std::uint32_t timeout_seconds);
  /// Leaves the group when all operations of this rank are done; aborts them otherwise. Waits for
  /// NCCL up to the timeout, and not for other ranks.
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  /// Calls `operation`, which gives NCCL work for `stream`, and returns when NCCL has taken it up.
  /// Throws: PeerFailed, Io. The handle is of no use afterwards.
  template <class Operation>
  void start(const char* what, const c10::Stream& stream, const Operation& operation) {
    const std::lock_guard lock(mutex_);
    require_healthy_locked();
    wait_until_taken_up(what, operation(handle_, static_cast<cudaStream_t>(cuda_stream(stream))));
    started_.push_back({in_scope(what), c10::Event(stream.device_type()), Clock::now()});
    started_.back().end.record(stream);
  }

  /// Throws: PeerFailed, Io when an operation has failed.
  void require_healthy();

 private:
  using Clock = std::chrono::steady_clock;
  struct Started {
    std::string what;
    c10::Event end;
    Clock::time_point since;  ///< when it was given, or became the first that is not done
  };

  // With the mutex held.
  void require_healthy_locked() const;
  ncclResult_t state() const;
  ncclResult_t settled(ncclResult_t result) const;
  void wait_until_taken_up(const char* what, ncclResult_t result);
  void forget_those_done();
  void look();
  void fail(Error failure);
  bool leave();

  void watch();

  std::chrono::seconds timeout_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool is_ending_ = false;
  ncclComm_t handle_ = nullptr;
  std::optional<Error> failure_;  ///< why there is no handle any more
  std::deque<Started> started_;
  std::thread watch_;
};

}  // namespace unishard::trainer::detail
