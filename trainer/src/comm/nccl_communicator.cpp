// Collectives on device memory: NCCL alone, without c10d's ProcessGroupNCCL, which a CPU build of
// LibTorch lacks. Everything runs on the legacy default stream, which LibTorch's default stream is:
// no events are needed, and wait() blocks the host. The ordered fold is grouped ncclSend/ncclRecv,
// the traffic of a reduce-scatter, and then LibTorch's add per rank. The unique id travels through
// the Gloo group, whose store the launcher named.
//
// Compiled and linked on machines without a device; never yet run on one.
#include "unishard/format/error.hpp"
#include "unishard/trainer/communicator.hpp"

#include "engine/tensor_bytes.hpp"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>

namespace unishard::trainer {
namespace {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  raise(ErrorCode::Io, std::string(what) + ": CUDA: " + cudaGetErrorString(result));
}

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  const bool peer = result == ncclRemoteError || result == ncclSystemError;
  raise(peer ? ErrorCode::PeerFailed : ErrorCode::Io,
        std::string(what) + ": NCCL: " + ncclGetErrorString(result));
}

constexpr cudaStream_t kStream = nullptr;

class StreamWork final : public Work {
 public:
  StreamWork(const char* what, std::function<void()> finish = nullptr)
      : what_(what), finish_(std::move(finish)) {}
  ~StreamWork() override { cudaStreamSynchronize(kStream); }
  void wait() override {
    if (finish_) std::exchange(finish_, nullptr)();
    check(cudaStreamSynchronize(kStream), what_);
  }

 private:
  const char* what_;
  std::function<void()> finish_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const RankEnvironment& environment, const CommunicatorOptions& options)
      : control_(environment.world_size == 1 ? make_single_communicator()
                                             : make_gloo_communicator(environment, options)),
        device_(static_cast<int>(environment.local_rank)) {
    check(cudaSetDevice(device_), "choosing the device");
    ncclUniqueId id;
    std::memset(&id, 0, sizeof id);
    if (rank() == 0) check(ncclGetUniqueId(&id), "making the group's id");
    control_->broadcast(std::as_writable_bytes(std::span(id.internal)), 0)->wait();
    check(ncclCommInitRank(&nccl_, static_cast<int>(size()), id, static_cast<int>(rank())),
          "joining the group");
  }
  ~NcclCommunicator() override { ncclCommAbort(nccl_); }

  std::uint32_t rank() const override { return control_->rank(); }
  std::uint32_t size() const override { return control_->size(); }
  Communicator& control() override { return *control_; }
  void barrier() override {
    check(cudaStreamSynchronize(kStream), "barrier");
    control_->barrier();
  }

  WorkPtr all_gather(std::span<std::byte> out, std::span<const std::byte> in) override {
    check(ncclAllGather(in.data(), out.data(), in.size(), ncclUint8, nccl_, kStream), "all-gather");
    return std::make_unique<StreamWork>("all-gather");
  }

  WorkPtr broadcast(std::span<std::byte> bytes, std::uint32_t root) override {
    check(ncclBroadcast(bytes.data(), bytes.data(), bytes.size(), ncclUint8, static_cast<int>(root),
                        nccl_, kStream),
          "broadcast");
    return std::make_unique<StreamWork>("broadcast");
  }

  WorkPtr reduce_scatter_fold(std::span<float> accumulator, DType dtype,
                              std::span<const std::byte> in) override {
    const auto slice = accumulator.size() * size_of(dtype);
    const auto elements = static_cast<std::int64_t>(accumulator.size());
    const auto options =
        at::TensorOptions().device(at::kCUDA, static_cast<c10::DeviceIndex>(device_));
    at::Tensor received = at::empty({elements * size()}, options.dtype(detail::scalar_type(dtype)));
    auto* into = static_cast<std::byte*>(received.data_ptr());
    check(ncclGroupStart(), "reduce-scatter");
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      const int other = static_cast<int>(peer);
      check(ncclSend(in.data() + peer * slice, slice, ncclUint8, other, nccl_, kStream),
            "reduce-scatter");
      check(ncclRecv(into + peer * slice, slice, ncclUint8, other, nccl_, kStream),
            "reduce-scatter");
    }
    check(ncclGroupEnd(), "reduce-scatter");
    at::Tensor sum = at::from_blob(accumulator.data(), {elements}, options.dtype(at::kFloat));
    return std::make_unique<StreamWork>("reduce-scatter", [=, ranks = size()] {
      for (std::int64_t peer = 0; peer < ranks; ++peer) {
        sum.add_(received.narrow(0, peer * elements, elements));
      }
    });
  }

 private:
  std::unique_ptr<Communicator> control_;
  int device_;
  ncclComm_t nccl_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const RankEnvironment& environment,
                                                     const CommunicatorOptions& options) {
  int devices = 0;
  if (!at::hasCUDA() || cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    raise(ErrorCode::Unsupported,
          at::hasCUDA() ? "no CUDA device was found" : "LibTorch was built without CUDA");
  }
  return std::make_unique<NcclCommunicator>(environment, options);
}

}  // namespace unishard::trainer
