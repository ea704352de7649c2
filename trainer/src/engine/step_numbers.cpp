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
                           std::uint32_t own_flags, TensorCollectives& collectives,
                           Communicator& communicator) {
  const std::vector<double> numbers =
      host_values(at::cat({own_losses, squares.to(own_losses.device())}));
  collectives.require_healthy();
  const auto count = static_cast<std::size_t>(own_losses.numel());
  const std::uint32_t ranks = communicator.size();
  std::vector<double> message{static_cast<double>(own_flags)};
  message.insert(message.end(), numbers.begin(), numbers.begin() + own_losses.numel());
  const auto sums = equally_many(model, std::span(numbers).subspan(count), ranks);
  message.insert(message.end(), sums.begin(), sums.end());
  const std::vector<double> all = gather_doubles(communicator, message);
  StepNumbers result;
  std::vector<double> losses, squares_of_ranks;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto of_rank = std::span(all).subspan(r * message.size(), message.size());
    result.flags |= static_cast<std::uint32_t>(of_rank[0]);
    const auto own = of_rank.subspan(1, count), rest = of_rank.subspan(1 + count);
    losses.insert(losses.end(), own.begin(), own.end());
    squares_of_ranks.insert(squares_of_ranks.end(), rest.begin(), rest.end());
  }
  result.losses = micro_batches.in_order(losses);
  result.gradient_norm = norm_of(model, squares_of_ranks, ranks);
  return result;
}

}  // namespace unishard::trainer::detail
