#include "engine/step_numbers.hpp"

#include "engine/gradient_norm.hpp"

#include <ATen/ops/cat.h>

#include <span>

namespace unishard::trainer::detail {

std::vector<double> host_values(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  const double* const begin = host.data_ptr<double>();
  return {begin, begin + host.numel()};
}

StepNumbers gather_numbers(const ModelState& model, const MicroBatches& micro_batches,
                           const at::Tensor& own_losses, const at::Tensor& squares,
                           TensorCollectives& collectives, Communicator& communicator) {
  const std::vector<double> numbers =
      host_values(at::cat({own_losses, squares.to(own_losses.device())}));
  collectives.require_healthy();
  const auto count = static_cast<std::size_t>(own_losses.numel());
  StepNumbers result;
  result.losses = micro_batches.gather(std::span(numbers).first(count));
  result.gradient_norm = gradient_norm(model, std::span(numbers).subspan(count), communicator);
  return result;
}

}  // namespace unishard::trainer::detail
