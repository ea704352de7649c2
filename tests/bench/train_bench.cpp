// Measures the forward and backward passes of a GPT alone, without communication and optimizer:
//   train_bench LAYERS WIDTH HEADS CONTEXT MICRO_BATCH STEPS [float32|bfloat16]
// Prints the seconds of each step after the first two, one a line. train_bench.py starts as many of
// these at once as a job has ranks.
#include "unishard/trainer/causal_language_model.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  const auto number = [&](int index) { return std::atoll(argv[index]); };
  at::set_num_threads(1);
  torch::manual_seed(1);
  const auto model =
      unishard::trainer::make_language_model(unishard::trainer::GptConfig{.vocabulary = 256,
                                                                          .context = number(4),
                                                                          .layers = number(1),
                                                                          .width = number(2),
                                                                          .heads = number(3),
                                                                          .dropout = 0});
  if (argc > 7 && std::string(argv[7]) == "bfloat16") model->to(at::kBFloat16);
  const at::Tensor windows = at::randint(256, {number(5), number(4) + 1}, at::kLong);
  for (std::int64_t step = 0; step < number(6); ++step) {
    model->zero_grad();
    const auto begin = std::chrono::steady_clock::now();
    model->loss(windows).backward();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (step >= 2) std::cout << seconds.count() << "\n";
  }
}
