#include "nccl_stand_in.hpp"

#include "guarded_device/streams.hpp"
#include "nccl_ranks.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

using namespace unishard::test;

struct ncclComm {
  std::shared_ptr<NcclRanks> ranks;
  std::size_t rank = 0;
  bool is_finalized = false;
};

namespace {

/// All communicators of the process.
struct Registry {
  std::mutex mutex;
  std::uint64_t ids = 0;
  std::map<std::uint64_t, std::weak_ptr<NcclRanks>> by_id;
  std::set<ncclComm_t> communicators;
  std::size_t aborts = 0;
};

Registry& registry() {
  static Registry all;
  return all;
}

/// The sends and receives between ncclGroupStart() and ncclGroupEnd().
struct Batch {
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
  NcclOperation operation = {.kind = NcclKind::Exchange};
  ncclResult_t error = ncclSuccess;
};

thread_local std::optional<Batch> batch;

/// The bytes that an operation reads or writes.
class Memory {
 public:
  explicit Memory(const char* what) : what_(what) {}

  /// Throws: c10::Error when the bytes are not in one block of the stream's device.
  void add(const void* address, std::size_t bytes, bool writes) {
    if (bytes == 0) return;
    guarded::Block* const block = guarded::Memory::instance().find(address);
    TORCH_CHECK(block, "guarded: ", what_, " is given memory that is not a device's");
    TORCH_CHECK(!block->freed, "guarded: ", what_, " is given freed ", block->describe());
    const auto* const end = static_cast<const std::byte*>(address) + bytes;
    TORCH_CHECK(end <= block->base + block->bytes, "guarded: ", what_, " is given ", bytes,
                " bytes that reach out of ", block->describe());
    const auto known = std::ranges::find(uses_, block, &guarded::Uses::value_type::first);
    if (known == uses_.end()) {
      uses_.emplace_back(block, writes);
    } else {
      known->second |= writes;
    }
  }
  /// Throws: as add() does, and for memory of another device, or a race.
  guarded::LateWork begin(cudaStream_t stream) const {
    const guarded::StreamKey key = guarded::stream_of(stream);
    for (const auto& [block, writes] : uses_)
      TORCH_CHECK(block->home.first == key.first, "guarded: ", what_, " is given ",
                  block->describe(), " of another device");
    return guarded::begin_late_work(key, what_, uses_);
  }

 private:
  const char* what_;
  guarded::Uses uses_;
};

/// A part of `whole` may be its own result, but only the rank's own part.
void require_own_part(const void* whole, std::size_t whole_bytes, const void* part,
                      std::size_t bytes, std::size_t rank) {
  const auto* const first = static_cast<const std::byte*>(whole);
  const auto* const mine = static_cast<const std::byte*>(part);
  const bool overlaps = mine < first + whole_bytes && first < mine + bytes;
  TORCH_CHECK(!overlaps || mine == first + rank * bytes,
              "guarded: NCCL's input and output overlap, and it is not the rank's own part");
}

ncclResult_t give(ncclComm_t communicator, cudaStream_t stream, NcclOperation operation,
                  const Memory& memory) {
  const ncclResult_t refusal = communicator->ranks->refusal(communicator->rank);
  if (refusal != ncclSuccess) return refusal;
  operation.work = memory.begin(stream);
  communicator->ranks->give(communicator->rank, std::move(operation));
  return ncclInProgress;
}

ncclResult_t give_batch(Batch all) {
  if (all.communicator == nullptr || all.error != ncclSuccess) return all.error;
  Memory memory("NCCL's exchange");
  for (const auto& send : all.operation.sends) memory.add(send.from, send.bytes, false);
  for (const auto& receive : all.operation.receives) memory.add(receive.to, receive.bytes, true);
  return give(all.communicator, all.stream, std::move(all.operation), memory);
}

/// Adds to the batch that has begun, or gives one with this alone.
template <class Add>
ncclResult_t add_to_batch(ncclComm_t communicator, cudaStream_t stream, const Add& add) {
  Batch alone;
  Batch& to = batch ? *batch : alone;
  to.communicator = communicator;
  to.stream = stream;
  add(to.operation);
  if (!batch) return give_batch(std::move(alone));
  const ncclResult_t refusal = communicator->ranks->refusal(communicator->rank);
  if (refusal != ncclSuccess) to.error = refusal;
  return refusal == ncclSuccess ? ncclInProgress : refusal;
}

}  // namespace

namespace unishard::test {

void fail_nccl(ncclResult_t error) {
  const std::lock_guard lock(registry().mutex);
  for (const ncclComm_t each : registry().communicators) each->ranks->fail(error);
}

std::size_t nccl_communicators() {
  const std::lock_guard lock(registry().mutex);
  return registry().communicators.size();
}

std::size_t take_nccl_aborts() {
  const std::lock_guard lock(registry().mutex);
  return std::exchange(registry().aborts, 0);
}

}  // namespace unishard::test

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return "remote error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclInvalidArgument:
      return "invalid argument";
    default:
      return "another error";
  }
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(registry().mutex);
  const std::uint64_t number = ++registry().ids;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  const std::lock_guard lock(registry().mutex);
  auto ranks = registry().by_id[number].lock();
  if (!ranks) {
    ranks = std::make_shared<NcclRanks>(static_cast<std::size_t>(size));
    registry().by_id[number] = ranks;
  }
  ranks->join();
  *communicator = new ncclComm{ranks, static_cast<std::size_t>(rank)};
  registry().communicators.insert(*communicator);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  *error = communicator->ranks->state(communicator->rank);
  const bool ends = communicator->is_finalized && !communicator->ranks->is_idle(communicator->rank);
  if (*error == ncclSuccess && ends) *error = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  communicator->ranks->leave(communicator->rank);
  const std::lock_guard lock(registry().mutex);
  ++registry().aborts;
  registry().communicators.erase(communicator);
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  if (std::exchange(communicator->is_finalized, true)) return ncclInvalidUsage;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  TORCH_CHECK(communicator->is_finalized && communicator->ranks->is_idle(communicator->rank),
              "guarded: a communicator that does not block is destroyed before it is finalized");
  const std::lock_guard lock(registry().mutex);
  registry().communicators.erase(communicator);
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  if (batch) return ncclInvalidUsage;
  const std::size_t bytes = count * nccl_size_of(type);
  const std::size_t all_bytes = bytes * communicator->ranks->size();
  require_own_part(out, all_bytes, in, bytes, communicator->rank);
  Memory memory("NCCL's all-gather");
  memory.add(in, bytes, false);
  memory.add(out, all_bytes, true);
  return give(communicator, stream,
              {.kind = NcclKind::AllGather, .count = count, .type = type, .in = in, .out = out},
              memory);
}

ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t communicator,
                               cudaStream_t stream) {
  if (batch || operation != ncclSum) return ncclInvalidUsage;
  const std::size_t bytes = count * nccl_size_of(type);
  const std::size_t all_bytes = bytes * communicator->ranks->size();
  require_own_part(in, all_bytes, out, bytes, communicator->rank);
  Memory memory("NCCL's reduce-scatter");
  memory.add(in, all_bytes, false);
  memory.add(out, bytes, true);
  return give(communicator, stream,
              {.kind = NcclKind::ReduceScatter, .count = count, .type = type, .in = in, .out = out},
              memory);
}

ncclResult_t ncclGroupStart() {
  if (batch) return ncclInvalidUsage;
  batch.emplace();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (!batch) return ncclInvalidUsage;
  return give_batch(*std::exchange(batch, std::nullopt));
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return add_to_batch(communicator, stream, [&](NcclOperation& operation) {
    operation.sends.push_back({static_cast<std::size_t>(peer), count * nccl_size_of(type), from});
  });
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return add_to_batch(communicator, stream, [&](NcclOperation& operation) {
    operation.receives.push_back({static_cast<std::size_t>(peer), count * nccl_size_of(type), to});
  });
}
}
