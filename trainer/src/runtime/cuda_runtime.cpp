// The project has no device to run this on; the rest of a CUDA device's runtime runs in the tests,
// on a device of theirs.
#include "unishard/format/error.hpp"
#include "unishard/format/partition.hpp"
#include "unishard/trainer/runtime.hpp"

#include "device/cuda_stream.hpp"
#include "optimizer/cuda_update.hpp"
#include "runtime/cublas_workspace.hpp"
#include "runtime/cuda_gradients.hpp"
#include "runtime/cuda_square_sums.hpp"
#include "runtime/device_arrays.hpp"
#include "runtime/device_runtime.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <algorithm>
#include <string>
#include <vector>

namespace unishard::trainer {
namespace {

void update(std::span<const UpdateSegment> segments, std::int64_t step, float gradient_scale,
            const UpdateTensors& tensors, c10::Stream stream) {
  detail::update_on_cuda(detail::rules_of(segments, step, gradient_scale),
                         detail::arrays_of(tensors, stream.device()), detail::rounded_of(tensors),
                         detail::cuda_stream(stream));
}

detail::GradientType gradient_type(at::ScalarType type) {
  if (type == at::kFloat) return detail::GradientType::Float32;
  if (type == at::kBFloat16) return detail::GradientType::Bfloat16;
  if (type == at::kHalf) return detail::GradientType::Float16;
  raise(ErrorCode::Internal, std::string("gradients of type ") + c10::toString(type));
}

void gather_gradients(std::span<const GradientPart> parts, const at::Tensor& to, Gather how,
                      c10::Stream stream) {
  std::vector<detail::GradientSource> sources;
  for (const auto& [begin, values] : parts)
    sources.push_back({.begin = static_cast<std::size_t>(begin),
                       .count = static_cast<std::size_t>(values.numel()),
                       .values = values.data_ptr()});
  const at::ScalarType type = parts.empty() ? to.scalar_type() : parts.front().values.scalar_type();
  detail::gather_gradients_on_cuda(
      sources, gradient_type(type),
      {.values = to.data_ptr(), .elements = static_cast<std::size_t>(to.numel()), .how = how},
      detail::cuda_stream(stream));
}

void sum_squares(const at::Tensor& gradients, std::span<const std::uint8_t> levels,
                 const at::Tensor& sums, c10::Stream stream) {
  const std::int64_t blocks = gradients.numel() / static_cast<std::int64_t>(kShardBlock);
  const at::Tensor block_sums = at::empty({blocks}, sums.options());
  detail::sum_squares_on_cuda({.gradients = gradients.data_ptr<float>(),
                               .block_sums = block_sums.data_ptr<double>(),
                               .sums = sums.data_ptr<double>(),
                               .blocks = static_cast<std::uint32_t>(blocks)},
                              levels, detail::cuda_stream(stream));
}

}  // namespace

std::uint32_t cuda_devices() {
  return detail::has_cuda_update() && detail::has_cuda_streams()
             ? static_cast<std::uint32_t>(torch::cuda::device_count())
             : 0;
}

std::uint32_t cuda_device_of(std::uint32_t local_rank) {
  return local_rank % std::max(1U, cuda_devices());
}

std::unique_ptr<Runtime> make_cuda_runtime(CudaRuntimeOptions options) {
  if (options.device >= cuda_devices()) {
    raise(ErrorCode::Unsupported,
          fmt::format("there is no CUDA device {}: this machine and build have {}", options.device,
                      cuda_devices()),
          "train on the CPU, or build against a LibTorch for CUDA with the CUDA compiler (nvcc)");
  }
  detail::choose_deterministic_cublas();
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(options.device));
  return detail::make_device_runtime(device, {.trace = options.trace,
                                              .update = update,
                                              .gather_gradients = gather_gradients,
                                              .sum_squares = sum_squares});
}

}  // namespace unishard::trainer
