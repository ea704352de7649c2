#include "runtime/device_arrays.hpp"

#include "unishard/format/error.hpp"

namespace unishard::trainer::detail {
namespace {

std::span<float> floats_on(const at::Tensor& tensor, at::Device device) {
  if (!tensor.is_contiguous() || tensor.device() != device || tensor.scalar_type() != at::kFloat)
    raise(ErrorCode::Internal, "an update of what is not contiguous float32 on " + device.str());
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

UpdateArrays arrays_of(const UpdateTensors& tensors, at::Device device) {
  std::vector<std::span<float>> states;
  for (const at::Tensor& each : tensors.states) states.push_back(floats_on(each, device));
  return arrays_of(floats_on(tensors.weights, device), floats_on(tensors.gradients, device),
                   states);
}

}  // namespace unishard::trainer::detail
