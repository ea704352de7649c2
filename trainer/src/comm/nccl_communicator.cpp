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
#include "device/cuda_check.hpp"

#include <nccl.h>

#include <cstring>
#include <functional>
#include <utility>

namespace unishard::trainer {
namespace {

using detail::check;

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  const bool peer = result == ncclRemoteError || result == ncclSystemError;
  raise(peer ? ErrorCode::PeerFailed : ErrorCode::Io,
        std::string(what) + ": NCCL: " + ncclGetErrorString(result));
}

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

/// Waits for the stream, then runs `finish` on the host. `finish` owns the operation's buffers.
WorkPtr staged(const char* what, cudaStream_t stream, std::function<void()> finish) {
  return std::make_unique<detail::DeferredWork>([what, stream, finish = std::move(finish)] {
    check(cudaStreamSynchronize(stream), what);
    finish();
  });
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const RankEnvironment& environment, const CommunicatorOptions& options)
      : control_(environment.world_size == 1 ? make_single_communicator()
                                             : make_gloo_communicator(environment, options)) {
    check(cudaSetDevice(static_cast<int>(environment.local_rank)), "choosing the device");
    check(cudaStreamCreate(&stream_), "making a stream");
    ncclUniqueId id;
    std::memset(&id, 0, sizeof id);
    if (rank() == 0) check(ncclGetUniqueId(&id), "making the group's id");
    control_->broadcast(std::as_writable_bytes(std::span(id.internal)), 0)->wait();
    check(ncclCommInitRank(&nccl_, static_cast<int>(size()), id, static_cast<int>(rank())),
          "joining the group");
  }
  ~NcclCommunicator() override {
    ncclCommAbort(nccl_);
    cudaStreamDestroy(stream_);
  }
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
    check(ncclAllGather(mine, buffer->at(0), in.size(), ncclUint8, nccl_, stream_), "all-gather");
    buffer->copy_out(out);
    return staged("all-gather", stream_, [buffer] {});
  }

  WorkPtr broadcast(std::span<std::byte> bytes, std::uint32_t root) override {
    const auto buffer = std::make_shared<DeviceBuffer>(bytes.size(), stream_);
    buffer->copy_in(0, bytes);
    check(ncclBroadcast(buffer->at(0), buffer->at(0), bytes.size(), ncclUint8,
                        static_cast<int>(root), nccl_, stream_),
          "broadcast");
    buffer->copy_out(bytes);
    return staged("broadcast", stream_, [buffer] {});
  }

  WorkPtr reduce_scatter_fold(std::span<float> accumulator, DType dtype,
                              std::span<const std::byte> in) override {
    const std::size_t slice = accumulator.size() * size_of(dtype);
    const auto sent = std::make_shared<DeviceBuffer>(in.size(), stream_);
    const auto received = std::make_shared<DeviceBuffer>(in.size(), stream_);
    sent->copy_in(0, in);
    check(ncclGroupStart(), "reduce-scatter");
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      check(ncclSend(sent->at(peer * slice), slice, ncclUint8, static_cast<int>(peer), nccl_,
                     stream_),
            "reduce-scatter");
      check(ncclRecv(received->at(peer * slice), slice, ncclUint8, static_cast<int>(peer), nccl_,
                     stream_),
            "reduce-scatter");
    }
    check(ncclGroupEnd(), "reduce-scatter");
    const auto host = std::make_shared<std::vector<std::byte>>(in.size());
    received->copy_out(*host);
    return staged("reduce-scatter", stream_, [=, ranks = size()] {
      static_cast<void>(sent);  // lives until the stream is done
      for (std::size_t peer = 0; peer < ranks; ++peer) {
        fold_add(accumulator, dtype,
                 std::span<const std::byte>(*host).subspan(peer * slice, slice));
      }
    });
  }

 private:
  std::unique_ptr<Communicator> control_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t nccl_ = nullptr;
};

}  // namespace

bool has_nccl_device(const RankEnvironment& environment) {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess &&
         devices > static_cast<int>(environment.local_rank);
}

std::unique_ptr<Communicator> make_nccl_communicator(const RankEnvironment& environment,
                                                     const CommunicatorOptions& options) {
  if (!has_nccl_device(environment)) {
    raise(ErrorCode::Unsupported,
          "NCCL needs a CUDA device for each rank, and there is none for local rank " +
              std::to_string(environment.local_rank),
          "use the gloo backend, or fewer ranks on this machine");
  }
  return std::make_unique<NcclCommunicator>(environment, options);
}

}  // namespace unishard::trainer
