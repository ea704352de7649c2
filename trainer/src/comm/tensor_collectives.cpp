#include "comm/tensor_collectives.hpp"

#include "comm/device_group.hpp"
#include "device/tensor_bytes.hpp"

namespace unishard::trainer::detail {
namespace {

/// Works in host memory; tensors of a device are copied there and back. The host waits for copies
/// from the device only: the stream orders those to it.
class HostCollectives final : public TensorCollectives {
 public:
  explicit HostCollectives(Communicator& communicator) : communicator_(communicator.duplicate()) {}

  void all_gather(const at::Tensor& out, const at::Tensor& in) override {
    const at::Tensor to = out.is_cpu() ? out : at::empty_like(out, at::kCPU);
    communicator_->all_gather(bytes_of(to), bytes_of(in.cpu()))->wait();
    if (!out.is_cpu()) out.copy_(to, /*non_blocking=*/true);
  }

  void reduce_scatter_fold(const at::Tensor& accumulator, const at::Tensor& in) override {
    const at::Tensor sum = accumulator.cpu();
    communicator_->reduce_scatter_fold(floats_of(sum), dtype_of(in), bytes_of(in.cpu()))->wait();
    if (!accumulator.is_cpu()) accumulator.copy_(sum, /*non_blocking=*/true);
  }

 private:
  /// A group of its own, also of one rank: the engine uses the other one meanwhile.
  std::unique_ptr<Communicator> communicator_;
};

/// The only rank has everything on its device already.
class SingleDeviceCollectives final : public TensorCollectives {
 public:
  void all_gather(const at::Tensor& out, const at::Tensor& in) override {
    if (out.data_ptr() != in.data_ptr()) out.copy_(in);
  }
  void reduce_scatter_fold(const at::Tensor& accumulator, const at::Tensor& in) override {
    accumulator.add_(in);
  }
};

}  // namespace

std::unique_ptr<TensorCollectives> make_tensor_collectives(Communicator& communicator,
                                                           at::Device device, Sum sum) {
  if (!device.is_cpu()) {
    if (auto* const group = dynamic_cast<DeviceGroup*>(&communicator))
      return group->device_collectives(sum);
    if (communicator.size() == 1) return std::make_unique<SingleDeviceCollectives>();
  }
  return std::make_unique<HostCollectives>(communicator);
}

}  // namespace unishard::trainer::detail
