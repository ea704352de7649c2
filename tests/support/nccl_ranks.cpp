#include "nccl_ranks.hpp"

#include "guarded_device/memory.hpp"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace unishard::test {
namespace {

using Operations = std::vector<NcclOperation>;

at::ScalarType scalar_of(ncclDataType_t type) {
  if (type == ncclBfloat16) return at::kBFloat16;
  return type == ncclFloat16 ? at::kHalf : at::kFloat;
}

std::byte* usable(const void* address) {
  return static_cast<std::byte*>(guarded::Memory::instance().usable(address));
}

bool agree(const Operations& all) {
  return std::ranges::all_of(all, [&](const NcclOperation& each) {
    return each.kind == all[0].kind && each.count == all[0].count && each.type == all[0].type;
  });
}

void gather(const Operations& all) {
  const std::size_t bytes = all[0].bytes();
  for (const NcclOperation& to : all) {
    for (std::size_t r = 0; r < all.size(); ++r)
      std::memmove(usable(to.out) + r * bytes, usable(all[r].in), bytes);
  }
}

/// Adds from the last rank to the first in the values' type: NCCL promises no order.
void reduce(const Operations& all) {
  const auto count = static_cast<std::int64_t>(all[0].count);
  const auto slice = [&](const void* of, std::size_t number) {
    return at::from_blob(usable(of) + number * all[0].bytes(), {count}, scalar_of(all[0].type));
  };
  std::vector<at::Tensor> sums;
  for (std::size_t r = 0; r < all.size(); ++r) {
    sums.push_back(slice(all.back().in, r).clone());
    for (std::size_t peer = all.size() - 1; peer-- > 0;) sums[r].add_(slice(all[peer].in, r));
  }
  for (std::size_t r = 0; r < all.size(); ++r) slice(all[r].out, 0).copy_(sums[r]);
}

/// Pairs the sends from one rank to another with its receives, in their order.
/// Returns false when they do not fit.
bool exchange(const Operations& all) {
  std::map<std::pair<std::size_t, std::size_t>, std::deque<NcclOperation::Send>> sent;
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (const auto& send : all[r].sends) sent[{r, send.peer}].push_back(send);
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (const auto& receive : all[r].receives) {
      auto& waiting = sent[{receive.peer, r}];
      if (waiting.empty() || waiting.front().bytes != receive.bytes) return false;
      std::memmove(usable(receive.to), usable(waiting.front().from), receive.bytes);
      waiting.pop_front();
    }
  }
  return std::ranges::all_of(sent, [](const auto& each) { return each.second.empty(); });
}

/// Returns false when the ranks' operations do not fit.
bool perform(const Operations& all) {
  if (!agree(all)) return false;
  if (all[0].kind == NcclKind::Exchange) return exchange(all);
  if (all[0].kind == NcclKind::AllGather) {
    gather(all);
  } else {
    reduce(all);
  }
  return true;
}

}  // namespace

std::size_t nccl_size_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
    default:
      break;
  }
  TORCH_CHECK(false, "the stand-in for NCCL lacks the type ", static_cast<int>(type));
  return 0;
}

std::size_t NcclOperation::bytes() const { return count * nccl_size_of(type); }

void NcclRanks::join() {
  const std::lock_guard lock(mutex_);
  ++joined_;
}

void NcclRanks::leave(std::size_t rank) {
  const std::lock_guard lock(mutex_);
  for (const NcclOperation& each : std::exchange(pending_[rank], {})) guarded::end_late(each.work);
}

void NcclRanks::fail(ncclResult_t error) {
  const std::lock_guard lock(mutex_);
  error_ = error;
}

ncclResult_t NcclRanks::state(std::size_t rank) {
  const std::lock_guard lock(mutex_);
  return state_now(rank);
}

bool NcclRanks::is_idle(std::size_t rank) {
  const std::lock_guard lock(mutex_);
  return pending_[rank].empty();
}

ncclResult_t NcclRanks::state_now(std::size_t rank) const {
  if (error_ != ncclSuccess) return error_;
  const bool connects = std::ranges::any_of(pending_[rank], [&](const NcclOperation& each) {
    return !connected_[rank].contains(each.kind);
  });
  return joined_ < size() || connects ? ncclInProgress : ncclSuccess;
}

ncclResult_t NcclRanks::refusal(std::size_t rank) {
  const ncclResult_t now = state(rank);
  return now == ncclInProgress ? ncclInvalidUsage : now;
}

void NcclRanks::give(std::size_t rank, NcclOperation operation) {
  const std::lock_guard lock(mutex_);
  pending_[rank].push_back(std::move(operation));
  const auto has_one = [](const auto& of_rank) { return !of_rank.empty(); };
  while (error_ == ncclSuccess && std::ranges::all_of(pending_, has_one)) perform_next();
}

/// Operations that do not fit stay: NCCL would hang, or give wrong results.
void NcclRanks::perform_next() {
  Operations all;
  for (const auto& of_rank : pending_) all.push_back(of_rank.front());
  if (!perform(all)) {
    error_ = ncclInvalidUsage;
    return;
  }
  for (std::size_t r = 0; r < size(); ++r) {
    connected_[r].insert(all[r].kind);
    pending_[r].pop_front();
    guarded::end_late(all[r].work);
  }
}

}  // namespace unishard::test
