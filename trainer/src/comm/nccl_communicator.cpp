// Collectives over NCCL alone, without c10d's ProcessGroupNCCL, which a CPU build of LibTorch
// lacks. The engine's memory is host memory, so each operation stages it through the device: copy
// in, NCCL, copy out, on one stream. The fold is grouped ncclSend/ncclRecv (the traffic of a
// reduce-scatter) and then the same additions on the host as in Gloo's fold, so that both give the
// same bits. The unique id is exchanged through the Gloo group.
//
// The project compiles and links this file on machines without a device; it has never run on one.
#include "unishard/format/error.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/fold.hpp"

#include "comm/deferred_work.hpp"
#include "comm/groups.hpp"
#include "comm/operation_scope.hpp"
#include "device/cuda_check.hpp"

#include <nccl.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

namespace unishard::trainer {
namespace {

using detail::check;

using Clock = std::chrono::steady_clock;

/// Throws unless the result is success or, of a communicator that does not block, in progress.
void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const bool peer = result == ncclRemoteError || result == ncclSystemError;
  raise(peer ? ErrorCode::PeerFailed : ErrorCode::Io,
        detail::in_scope(what) + ": NCCL: " + ncclGetErrorString(result));
}

/// The communicator, which never blocks: whoever waits looks for errors and for the time.
class Group {
 public:
  explicit Group(std::uint32_t timeout_seconds) : timeout_(timeout_seconds) {}
  ~Group() {
    if (handle_) ncclCommAbort(handle_);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void join(const ncclUniqueId& id, std::uint32_t rank, std::uint32_t size) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(ncclCommInitRankConfig(&handle_, static_cast<int>(size), id, static_cast<int>(rank),
                                 &config),
          "joining the group");
    wait("joining the group", [] { return true; });
  }

  ncclComm_t handle() const { return handle_; }

  /// Waits until NCCL has taken the operation up and `is_done` says so. After the timeout it aborts
  /// the group, which ends NCCL's kernels on this device.
  template <class IsDone>
  void wait(const char* what, const IsDone& is_done) {
    const auto end = Clock::now() + timeout_;
    while (is_in_progress(what) || !is_done()) {
      if (Clock::now() > end) give_up(what);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  bool is_in_progress(const char* what) const {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(handle_, &state), what);
    check(state, what);
    return state == ncclInProgress;
  }

  [[noreturn]] void give_up(const char* what) {
    ncclCommAbort(std::exchange(handle_, nullptr));
    raise(ErrorCode::PeerFailed,
          detail::in_scope(what) + ": no answer within " + std::to_string(timeout_.count()) + " s",
          "another rank ended or hangs: read its message, then restart all ranks");
  }

  std::chrono::seconds timeout_;
  ncclComm_t handle_ = nullptr;
};

// Device memory, allocated in the order of its stream. At least one byte, because NCCL and CUDA
// refuse empty buffers.
class DeviceBuffer {
 public:
  DeviceBuffer(std::size_t bytes, cudaStream_t stream) : stream_(stream) {
    check(cudaMallocAsync(&data_, bytes == 0 ? 1 : bytes, stream), "allocating device memory");
  }
  ~DeviceBuffer() { cudaFreeAsync(data_, stream_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(data_) + offset; }
  void copy_in(std::size_t offset, std::span<const std::byte> from) const {
    check(cudaMemcpyAsync(at(offset), from.data(), from.size(), cudaMemcpyHostToDevice, stream_),
          "copying to the device");
  }
  void copy_out(std::span<std::byte> to) const {
    check(cudaMemcpyAsync(to.data(), data_, to.size(), cudaMemcpyDeviceToHost, stream_),
          "copying from the device");
  }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const RankEnvironment& environment, const CommunicatorOptions& options,
                   std::unique_ptr<Communicator> control)
      : control_(std::move(control)), group_(options.timeout_seconds) {
    check(cudaSetDevice(static_cast<int>(environment.local_rank)), "choosing the device");
    check(cudaStreamCreate(&stream_), "making a stream");
    ncclUniqueId id;
    std::memset(&id, 0, sizeof id);
    if (rank() == 0) check(ncclGetUniqueId(&id), "making the group's id");
    control_->broadcast(std::as_writable_bytes(std::span(id.internal)), 0)->wait();
    group_.join(id, rank(), size());
  }
  ~NcclCommunicator() override { cudaStreamDestroy(stream_); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  std::uint32_t rank() const override { return control_->rank(); }
  std::uint32_t size() const override { return control_->size(); }
  Communicator& control() override { return *control_; }
  void barrier() override { control_->barrier(); }
  std::unique_ptr<Communicator> duplicate() override { return control_->duplicate(); }

  WorkPtr all_gather(std::span<std::byte> out, std::span<const std::byte> in) override {
    const auto buffer = std::make_shared<DeviceBuffer>(out.size(), stream_);
    std::byte* mine = buffer->at(rank() * in.size());
    buffer->copy_in(rank() * in.size(), in);
    enqueue("all-gather", [&] {
      return ncclAllGather(mine, buffer->at(0), in.size(), ncclUint8, group_.handle(), stream_);
    });
    buffer->copy_out(out);
    return staged("all-gather", [buffer] {});
  }

  WorkPtr broadcast(std::span<std::byte> bytes, std::uint32_t root) override {
    const auto buffer = std::make_shared<DeviceBuffer>(bytes.size(), stream_);
    buffer->copy_in(0, bytes);
    enqueue("broadcast", [&] {
      return ncclBroadcast(buffer->at(0), buffer->at(0), bytes.size(), ncclUint8,
                           static_cast<int>(root), group_.handle(), stream_);
    });
    buffer->copy_out(bytes);
    return staged("broadcast", [buffer] {});
  }

  WorkPtr reduce_scatter_fold(std::span<float> accumulator, DType dtype,
                              std::span<const std::byte> in) override {
    const std::size_t slice = accumulator.size() * size_of(dtype);
    const auto sent = std::make_shared<DeviceBuffer>(in.size(), stream_);
    const auto received = std::make_shared<DeviceBuffer>(in.size(), stream_);
    sent->copy_in(0, in);
    enqueue("reduce-scatter", [&] { return exchange(*sent, *received, slice); });
    const auto host = std::make_shared<std::vector<std::byte>>(in.size());
    received->copy_out(*host);
    return staged("reduce-scatter", [=, ranks = size()] {
      static_cast<void>(sent);  // lives until the stream is done
      for (std::size_t peer = 0; peer < ranks; ++peer) {
        fold_add(accumulator, dtype,
                 std::span<const std::byte>(*host).subspan(peer * slice, slice));
      }
    });
  }

 private:
  /// Calls `operation` and waits until NCCL has taken it up.
  template <class Operation>
  void enqueue(const char* what, const Operation& operation) {
    check(operation(), what);
    group_.wait(what, [] { return true; });
  }

  /// Sends slice p of `sent` to rank p, and receives its slice.
  ncclResult_t exchange(const DeviceBuffer& sent, const DeviceBuffer& received,
                        std::size_t slice) const {
    check(ncclGroupStart(), "reduce-scatter");
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      const int number = static_cast<int>(peer);
      check(ncclSend(sent.at(peer * slice), slice, ncclUint8, number, group_.handle(), stream_),
            "reduce-scatter");
      check(ncclRecv(received.at(peer * slice), slice, ncclUint8, number, group_.handle(), stream_),
            "reduce-scatter");
    }
    return ncclGroupEnd();
  }

  /// Waits for the stream, then runs `finish` on the host. `finish` owns the operation's buffers.
  WorkPtr staged(const char* what, std::function<void()> finish) {
    return std::make_unique<detail::DeferredWork>([this, what, finish = std::move(finish)] {
      group_.wait(what, [&] {
        const cudaError_t state = cudaStreamQuery(stream_);
        if (state != cudaErrorNotReady) check(state, what);
        return state == cudaSuccess;
      });
      finish();
    });
  }

  std::unique_ptr<Communicator> control_;
  cudaStream_t stream_ = nullptr;
  Group group_;
};

}  // namespace

bool has_nccl_device(const RankEnvironment& environment) {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess &&
         devices > static_cast<int>(environment.local_rank);
}

std::unique_ptr<Communicator> detail::make_nccl_communicator(
    const RankEnvironment& environment, const CommunicatorOptions& options,
    std::unique_ptr<Communicator> control) {
  if (!has_nccl_device(environment)) {
    raise(ErrorCode::Unsupported,
          "NCCL needs a CUDA device for each rank, and there is none for local rank " +
              std::to_string(environment.local_rank),
          "use the gloo backend, or fewer ranks on this machine");
  }
  return std::make_unique<NcclCommunicator>(environment, options, std::move(control));
}

}  // namespace unishard::trainer
