// On a CUDA device this file has run with one rank only. The tests run it on the guarded device,
// with a stand-in for NCCL's functions.
#include "comm/nccl_handle.hpp"

#include <fmt/format.h>

#include <utility>

namespace unishard::trainer::detail {
namespace {

constexpr std::chrono::milliseconds kLookEvery{100};
/// A communicator that never blocks gives each operation to the device on a thread of its own,
/// which takes less time than the shortest sleep. One that blocks could not be ended where a rank
/// hangs while the first operation connects them.
constexpr std::chrono::microseconds kYieldFor{500};
constexpr std::chrono::microseconds kPollEvery{20};
constexpr const char* kPeerHint =
    "another rank ended or hangs: read its message, then restart all ranks";

Error no_answer(const std::string& what, std::chrono::seconds timeout) {
  return {ErrorCode::PeerFailed,
          fmt::format("{}: NCCL: no answer within {} s", what, timeout.count()), kPeerHint};
}

/// Pre: !is_fine(result).
Error error_of(ncclResult_t result, const std::string& what) {
  const std::string message = what + ": NCCL: " + ncclGetErrorString(result);
  if (result == ncclRemoteError || result == ncclSystemError)
    return {ErrorCode::PeerFailed, message, kPeerHint};
  return {ErrorCode::Io, message,
          "NCCL prints the reason with NCCL_DEBUG=WARN in the environment; restart all ranks"};
}

}  // namespace

void check(ncclResult_t result, const char* what) {
  if (!is_fine(result)) throw error_of(result, in_scope(what));
}

NcclHandle::NcclHandle(const ncclUniqueId& id, std::uint32_t rank, std::uint32_t size,
                       std::uint32_t timeout_seconds)
    : timeout_(timeout_seconds) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result =
      ncclCommInitRankConfig(&handle_, static_cast<int>(size), id, static_cast<int>(rank), &config);
  {
    const std::lock_guard lock(mutex_);
    wait_until_taken_up("joining the group", result);
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
  const std::lock_guard lock(mutex_);
  if (handle_ && !leave()) ncclCommAbort(handle_);
}

/// Lets what other ranks have yet to receive from this one arrive, which an abort could cut off.
/// Returns false when an operation is not done, or NCCL does not end in time.
bool NcclHandle::leave() {
  try {
    forget_those_done();
  } catch (const std::exception&) {  // the device has failed
    return false;
  }
  if (!started_.empty() || settled(ncclCommFinalize(handle_)) != ncclSuccess) return false;
  ncclCommDestroy(handle_);
  return true;
}

void NcclHandle::require_healthy() {
  const std::lock_guard lock(mutex_);
  look();
  require_healthy_locked();
}

void NcclHandle::require_healthy_locked() const {
  if (failure_) throw *failure_;
}

ncclResult_t NcclHandle::state() const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(handle_, &state);
  return asked == ncclSuccess ? state : asked;
}

/// Waits while NCCL is in progress with a call that returned `result`. Returns how it ended, or
/// ncclInProgress after the timeout.
ncclResult_t NcclHandle::settled(ncclResult_t result) const {
  const auto begin = Clock::now();
  if (is_fine(result)) result = state();
  while (result == ncclInProgress && Clock::now() < begin + timeout_) {
    if (Clock::now() < begin + kYieldFor) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollEvery);
    }
    result = state();
  }
  return result;
}

/// `result` is what the call returned that gave the work.
void NcclHandle::wait_until_taken_up(const char* what, ncclResult_t result) {
  result = settled(result);
  if (result == ncclInProgress) fail(no_answer(in_scope(what), timeout_));
  if (!is_fine(result)) fail(error_of(result, in_scope(what)));
  require_healthy_locked();
}

void NcclHandle::forget_those_done() {
  while (!started_.empty() && started_.front().end.query()) {
    started_.pop_front();
    if (!started_.empty()) started_.front().since = Clock::now();
  }
}

/// Finds operations that will never be done.
void NcclHandle::look() {
  if (!handle_) return;
  forget_those_done();
  const ncclResult_t result = state();
  const std::string what = started_.empty() ? "after all operations" : started_.front().what;
  if (!is_fine(result)) {
    fail(error_of(result, what));
  } else if (!started_.empty() && Clock::now() > started_.front().since + timeout_) {
    fail(no_answer(what, timeout_));
  }
}

/// Ends NCCL's kernels on this device, so that the host no longer waits for them.
void NcclHandle::fail(Error failure) {
  failure_ = std::move(failure);
  if (handle_) ncclCommAbort(std::exchange(handle_, nullptr));
}

void NcclHandle::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kLookEvery, [this] { return is_ending_; })) look();
}

}  // namespace unishard::trainer::detail
