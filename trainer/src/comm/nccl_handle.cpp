// The project compiles and links this file on machines without a device; it has never run on one.
#include "comm/nccl_handle.hpp"

#include <fmt/format.h>

#include <utility>

namespace unishard::trainer::detail {
namespace {

constexpr std::chrono::milliseconds kLookEvery{100};
constexpr std::chrono::microseconds kPollEvery{20};
constexpr const char* kHint =
    "another rank ended or hangs: read its message, then restart all ranks";

}  // namespace

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const bool peer = result == ncclRemoteError || result == ncclSystemError;
  raise(peer ? ErrorCode::PeerFailed : ErrorCode::Io,
        in_scope(what) + ": NCCL: " + ncclGetErrorString(result));
}

NcclHandle::NcclHandle(const ncclUniqueId& id, std::uint32_t rank, std::uint32_t size,
                       std::uint32_t timeout_seconds)
    : timeout_(timeout_seconds) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  check(
      ncclCommInitRankConfig(&handle_, static_cast<int>(size), id, static_cast<int>(rank), &config),
      "joining the group");
  {
    const std::lock_guard lock(mutex_);
    wait_until_taken_up("joining the group");
  }
  watch_ = std::thread([this] { watch(); });
}

NcclHandle::~NcclHandle() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ends_.notify_all();
  if (watch_.joinable()) watch_.join();
  if (handle_) ncclCommAbort(handle_);
}

void NcclHandle::require_healthy() {
  const std::lock_guard lock(mutex_);
  look();
  require_healthy_locked();
}

void NcclHandle::require_healthy_locked() const {
  if (!problem_.empty()) raise(ErrorCode::PeerFailed, problem_, kHint);
}

void NcclHandle::wait_until_taken_up(const char* what) {
  const auto end = Clock::now() + timeout_;
  for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
    check(ncclCommGetAsyncError(handle_, &state), what);
    check(state, what);
    if (state == ncclInProgress && Clock::now() > end) {
      fail(fmt::format("{}: no answer within {} s", in_scope(what), timeout_.count()));
      require_healthy_locked();
    }
    if (state == ncclInProgress) std::this_thread::sleep_for(kPollEvery);
  }
}

/// Forgets operations that are done, and finds those that never will be.
void NcclHandle::look() {
  if (!handle_) return;
  while (!started_.empty() && started_.front().end.query()) started_.pop_front();
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(handle_, &state);
  const ncclResult_t result = asked == ncclSuccess ? state : asked;
  const std::string what = started_.empty() ? "NCCL" : started_.front().what + ": NCCL";
  if (result != ncclSuccess && result != ncclInProgress) {
    fail(what + ": " + ncclGetErrorString(result));
  } else if (!started_.empty() && Clock::now() > started_.front().time + timeout_) {
    fail(fmt::format("{}: no answer within {} s", what, timeout_.count()));
  }
}

/// Ends NCCL's kernels on this device, so that the host no longer waits for them.
void NcclHandle::fail(const std::string& problem) {
  problem_ = problem;
  ncclCommAbort(std::exchange(handle_, nullptr));
}

void NcclHandle::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kLookEvery, [this] { return is_ending_; })) look();
}

}  // namespace unishard::trainer::detail
