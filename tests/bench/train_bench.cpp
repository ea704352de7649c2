// Measures the forward and backward passes of a GPT alone, without communication and optimizer:
//   train_bench LAYERS WIDTH HEADS CONTEXT MICRO_BATCH STEPS [float32|bfloat16]
// or those of the loss of a large vocabulary alone, whose gradient is computed along with it, anew
// in the backward pass, or by LibTorch's own loss of widened logits:
//   train_bench loss along|anew|widened ROWS VOCABULARY STEPS [float32|bfloat16]
// Prints the seconds of each step after the first two, one a line, and for the loss the peak memory
// of the process. train_bench.py starts as many of these at once as a job has ranks.
#include "unishard/trainer/causal_language_model.hpp"

#include "models/cross_entropy.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <sys/resource.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

using Words = std::vector<std::string>;

std::int64_t number(const std::string& word) { return std::atoll(word.c_str()); }

template <class Step>
void print_steps(std::int64_t steps, const Step& take) {
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    take();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (step >= 2) std::cout << seconds.count() << "\n";
  }
}

void measure_loss(const Words& words) {
  using unishard::trainer::detail::cross_entropy_in_parts;
  const std::string& way = words[0];
  const std::int64_t rows = number(words[1]), vocabulary = number(words[2]);
  at::Tensor logits = at::randn({rows, vocabulary});
  if (words.size() > 4 && words[4] == "bfloat16") logits = logits.to(at::kBFloat16);
  logits.requires_grad_();
  const at::Tensor targets = at::randint(vocabulary, {rows}, at::kLong);
  const at::Tensor expected = way == "along" ? at::ones({}) : at::Tensor();
  print_steps(number(words[3]), [&] {
    logits.mutable_grad().reset();
    const at::Tensor loss =
        way == "widened" ? at::cross_entropy_loss(logits.to(at::kFloat), targets)
                         : cross_entropy_in_parts(logits, targets, {.expected_gradient = expected});
    loss.backward();
  });
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  std::cout << "peak " << usage.ru_maxrss / 1024 << " MiB\n";
}

void measure_passes(const Words& words) {
  const auto model = unishard::trainer::make_language_model(
      unishard::trainer::GptConfig{.vocabulary = 256,
                                   .context = number(words[3]),
                                   .layers = number(words[0]),
                                   .width = number(words[1]),
                                   .heads = number(words[2]),
                                   .dropout = 0});
  if (words.size() > 6 && words[6] == "bfloat16") model->to(at::kBFloat16);
  const at::Tensor windows = at::randint(256, {number(words[4]), number(words[3]) + 1}, at::kLong);
  print_steps(number(words[5]), [&] {
    model->zero_grad();
    model->loss(windows).backward();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const Words words(argv + 1, argv + argc);
  at::set_num_threads(1);
  torch::manual_seed(1);
  if (words.size() > 4 && words[0] == "loss") {
    measure_loss({words.begin() + 1, words.end()});
  } else if (words.size() > 5) {
    measure_passes(words);
  } else {
    return 2;
  }
}
