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

std::vector<RuleSegment> rules_of(std::span<const UpdateSegment> segments, std::int64_t step,
                                  float gradient_scale) {
  std::vector<RuleSegment> ruled;
  ruled.reserve(segments.size());
  for (const UpdateSegment& each : segments)
    ruled.push_back({.begin = static_cast<std::size_t>(each.begin),
                     .count = static_cast<std::size_t>(each.count),
                     .rule = rule_for(*each.optimizer, each.hyper, step, gradient_scale)});
  return ruled;
}

UpdateArrays arrays_of(const UpdateTensors& tensors, at::Device device) {
  std::vector<std::span<float>> states;
  for (const at::Tensor& each : tensors.states) states.push_back(floats_on(each, device));
  return arrays_of(floats_on(tensors.weights, device), floats_on(tensors.gradients, device),
                   states);
}

RoundedArray rounded_of(const UpdateTensors& tensors) {
  const at::Tensor& rounded = tensors.rounded;
  if (!rounded.defined()) return {};
  const bool is_bfloat16 = rounded.scalar_type() == at::kBFloat16;
  if (!rounded.is_contiguous() || (!is_bfloat16 && rounded.scalar_type() != at::kHalf))
    raise(ErrorCode::Internal, "an update that rounds to what is not contiguous 16-bit floats");
  return {.values = rounded.data_ptr(), .is_bfloat16 = is_bfloat16};
}

void update_segments(std::span<const RuleSegment> segments, const UpdateTensors& tensors,
                     const std::function<void(const Rule&, const UpdateArrays&)>& update) {
  const UpdateArrays arrays = arrays_of(tensors, at::kCPU);
  for (const RuleSegment& each : segments) {
    update(each.rule, arrays.part(each.begin, each.count));
    if (!tensors.rounded.defined()) continue;
    const auto begin = static_cast<std::int64_t>(each.begin);
    const auto count = static_cast<std::int64_t>(each.count);
    tensors.rounded.narrow(0, begin, count).copy_(tensors.weights.narrow(0, begin, count));
  }
}

}  // namespace unishard::trainer::detail
