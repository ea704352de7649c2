// Collectives over NCCL alone, without c10d's ProcessGroupNCCL, which a CPU build of LibTorch
// lacks. The canonical sum is grouped ncclSend/ncclRecv (the traffic of a reduce-scatter) and then
// the same additions on the device as Gloo's fold on the host, so that both give the same bits.  On
// a CUDA device this file has run with one rank only. The tests run it on the guarded device, with
// a stand-in for NCCL's functions.
#include "unishard/format/error.hpp"
#include "unishard/trainer/communicator.hpp"

#include "comm/device_group.hpp"
#include "comm/groups.hpp"
#include "comm/nccl_handle.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <utility>

namespace unishard::trainer {
namespace {

using detail::check;
using detail::NcclHandle;

ncclDataType_t type_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kBFloat16) return ncclBfloat16;
  return tensor.scalar_type() == at::kHalf ? ncclFloat16 : ncclFloat32;
}

/// The operations are given to the stream that is current on the tensors' device.
class NcclCollectives final : public detail::TensorCollectives {
 public:
  NcclCollectives(NcclHandle& handle, std::uint32_t size, Sum sum)
      : handle_(handle), size_(size), sum_(sum) {}

  void all_gather(const at::Tensor& out, const at::Tensor& in) override {
    start("all-gather", out, [&](ncclComm_t group, cudaStream_t stream) {
      return ncclAllGather(in.data_ptr(), out.data_ptr(), in.nbytes(), ncclUint8, group, stream);
    });
  }

  void reduce_scatter_fold(const at::Tensor& accumulator, const at::Tensor& in) override {
    if (sum_ == Sum::Fast) {
      accumulator.add_(sum_of_slices(in, accumulator.numel()));
    } else {
      const at::Tensor slices = exchange(in).view({static_cast<std::int64_t>(size_), -1});
      for (std::int64_t peer = 0; peer < slices.size(0); ++peer) accumulator.add_(slices[peer]);
    }
  }

  void require_healthy() override { handle_.require_healthy(); }

 private:
  template <class Operation>
  void start(const char* what, const at::Tensor& tensor, const Operation& operation) {
    const at::Device device = tensor.device();
    handle_.start(what, c10::impl::VirtualGuardImpl(device.type()).getStream(device), operation);
  }

  /// Returns the sum of this rank's slices, added in the tensors' type.
  at::Tensor sum_of_slices(const at::Tensor& in, std::int64_t count) {
    at::Tensor sum = at::empty({count}, in.options());
    start("reduce-scatter", in, [&](ncclComm_t group, cudaStream_t stream) {
      return ncclReduceScatter(in.data_ptr(), sum.data_ptr(), static_cast<std::size_t>(count),
                               type_of(in), ncclSum, group, stream);
    });
    return sum;
  }

  /// Sends slice p of `in` to rank p. Returns this rank's slices of all ranks.
  at::Tensor exchange(const at::Tensor& in) {
    at::Tensor received = at::empty_like(in);
    const std::size_t slice = in.nbytes() / size_;
    start("reduce-scatter", in, [&](ncclComm_t group, cudaStream_t stream) {
      const auto* const from = static_cast<const std::byte*>(in.data_ptr());
      auto* const to = static_cast<std::byte*>(received.data_ptr());
      ncclResult_t result = ncclGroupStart();
      for (std::uint32_t peer = 0; peer < size_ && detail::is_fine(result); ++peer) {
        const int number = static_cast<int>(peer);
        result = ncclSend(from + peer * slice, slice, ncclUint8, number, group, stream);
        if (!detail::is_fine(result)) break;
        result = ncclRecv(to + peer * slice, slice, ncclUint8, number, group, stream);
      }
      const ncclResult_t ended = ncclGroupEnd();  // also after an error: the group is the thread's
      return detail::is_fine(result) ? ended : result;
    });
    return received;
  }

  NcclHandle& handle_;
  std::uint32_t size_;
  Sum sum_;
};

ncclUniqueId common_id(Communicator& host) {
  ncclUniqueId id;
  std::memset(&id, 0, sizeof id);
  if (host.rank() == 0) check(ncclGetUniqueId(&id), "making the group's id");
  host.broadcast(std::as_writable_bytes(std::span(id.internal)), 0)->wait();
  return id;
}

class NcclGroup final : public detail::DeviceGroup {
 public:
  NcclGroup(std::uint32_t timeout_seconds, std::unique_ptr<Communicator> host)
      : host_(std::move(host)),
        handle_(common_id(*host_), host_->rank(), host_->size(), timeout_seconds) {}

  std::unique_ptr<detail::TensorCollectives> device_collectives(Sum sum) override {
    return std::make_unique<NcclCollectives>(handle_, size(), sum);
  }

  std::uint32_t rank() const override { return host_->rank(); }
  std::uint32_t size() const override { return host_->size(); }
  WorkPtr all_gather(std::span<std::byte> out, std::span<const std::byte> in) override {
    return host_->all_gather(out, in);
  }
  WorkPtr reduce_scatter_fold(std::span<float> accumulator, DType dtype,
                              std::span<const std::byte> in) override {
    return host_->reduce_scatter_fold(accumulator, dtype, in);
  }
  WorkPtr broadcast(std::span<std::byte> bytes, std::uint32_t root) override {
    return host_->broadcast(bytes, root);
  }
  void barrier() override { host_->barrier(); }
  std::unique_ptr<Communicator> duplicate() override { return host_->duplicate(); }

 private:
  std::unique_ptr<Communicator> host_;
  NcclHandle handle_;
};

}  // namespace

bool has_nccl_device(const RankEnvironment& environment) {
  int devices = 0;
  return detail::has_cuda_streams() && cudaGetDeviceCount(&devices) == cudaSuccess &&
         devices > static_cast<int>(environment.local_rank);
}

std::unique_ptr<Communicator> detail::make_nccl_group(const RankEnvironment& environment,
                                                      const CommunicatorOptions& options,
                                                      std::unique_ptr<Communicator> host) {
  if (!has_nccl_device(environment)) {
    raise(ErrorCode::Unsupported,
          "NCCL needs a CUDA device for each rank, and there is none for local rank " +
              std::to_string(environment.local_rank),
          "use the gloo backend, or fewer ranks on this machine");
  }
  const c10::DeviceGuard current(
      at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(environment.local_rank)));
  return join_nccl_group(options.timeout_seconds, std::move(host));
}

std::unique_ptr<Communicator> detail::join_nccl_group(std::uint32_t timeout_seconds,
                                                      std::unique_ptr<Communicator> host) {
  return std::make_unique<NcclGroup>(timeout_seconds, std::move(host));
}

}  // namespace unishard::trainer
