#include "comm/tensor_collectives.hpp"

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

}  // namespace

std::unique_ptr<TensorCollectives> make_tensor_collectives(Communicator& communicator) {
  return std::make_unique<HostCollectives>(communicator);
}

}  // namespace unishard::trainer::detail
