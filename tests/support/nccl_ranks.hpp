#pragma once
// What the ranks of one NCCL group have given. An operation is performed when all ranks have given
// theirs; until then it is late work of each rank's stream.
#include "guarded_device/late_work.hpp"

#include <nccl.h>

#include <cstddef>
#include <deque>
#include <mutex>
#include <set>
#include <vector>

namespace unishard::test {

enum class NcclKind { AllGather, ReduceScatter, Exchange };

/// What one rank gives of one operation.
struct NcclOperation {
  struct Send {
    std::size_t peer, bytes;
    const void* from;
  };
  struct Receive {
    std::size_t peer, bytes;
    void* to;
  };

  NcclKind kind = NcclKind::Exchange;
  std::size_t count = 0;
  ncclDataType_t type = ncclUint8;
  const void* in = nullptr;
  void* out = nullptr;
  std::vector<Send> sends = {};
  std::vector<Receive> receives = {};
  guarded::LateWork work = {};

  std::size_t bytes() const;  ///< of `count` elements
};

/// Throws: c10::Error for a type that the trainer does not use.
std::size_t nccl_size_of(ncclDataType_t type);

/// Ranks connect when they join, and with their first operation of each kind: until all ranks have
/// given theirs, the state is ncclInProgress, and a rank may give nothing else. Later operations
/// are taken up at once.
/// Thread-safe.
class NcclRanks {
 public:
  explicit NcclRanks(std::size_t size) : pending_(size), connected_(size) {}

  std::size_t size() const { return pending_.size(); }
  void join();
  /// Ends what the rank has given, whatever the other ranks do.
  void leave(std::size_t rank);
  /// Becomes the state of all ranks.
  void fail(ncclResult_t error);

  ncclResult_t state(std::size_t rank);
  /// Returns true when all that the rank has given is done.
  bool is_idle(std::size_t rank);
  /// Returns why the rank may give nothing now, or ncclSuccess.
  ncclResult_t refusal(std::size_t rank);
  /// Pre: refusal(rank) is ncclSuccess.
  void give(std::size_t rank, NcclOperation operation);

 private:
  ncclResult_t state_now(std::size_t rank) const;
  void perform_next();

  std::mutex mutex_;
  std::size_t joined_ = 0;
  std::vector<std::deque<NcclOperation>> pending_;  ///< by rank
  std::vector<std::set<NcclKind>> connected_;       ///< by rank
  ncclResult_t error_ = ncclSuccess;
};

}  // namespace unishard::test
