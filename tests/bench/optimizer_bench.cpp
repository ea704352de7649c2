// Seconds of optimizer updates on tensors as the trainer holds them, by as many threads as
// OMP_NUM_THREADS says: optimizer_bench [--optimizer AdamW] [--elements 100000000] [--repeats 5].
// Prints one line of JSON. beside_cpu_adam.py compares it with DeepSpeed's.
#include "optimizer/parallel_update.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <iostream>

namespace {

using namespace unishard::trainer;

template <class Work>
double seconds(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Seconds of optimizer updates");
  std::string name = "AdamW";
  std::int64_t elements = 100'000'000;
  int repeats = 5;
  app.add_option("--optimizer", name);
  app.add_option("--elements", elements);
  app.add_option("--repeats", repeats);
  CLI11_PARSE(app, argc, argv);

  const Hyper hyper{.weight_decay = 0.1, .momentum = 0.9};
  const auto optimizer = make_optimizer(name, hyper);
  at::Tensor weights = at::randn({elements});
  const at::Tensor gradients = at::randn({elements});
  std::vector<at::Tensor> states;
  detail::UpdateArrays arrays{.weights = weights.data_ptr<float>(),
                              .gradients = gradients.data_ptr<float>(),
                              .count = static_cast<std::size_t>(elements)};
  for (std::size_t i = 0; i < optimizer->state_names().size(); ++i) {
    states.push_back(at::zeros({elements}));
    arrays.states[i] = states.back().data_ptr<float>();
  }

  nlohmann::json result = {{"threads", at::get_num_threads()}};
  for (int i = -2; i < repeats; ++i) {  // two warm up
    const detail::Rule rule = detail::rule_for(*optimizer, hyper, i + 3, 1);
    const double update = seconds([&] { detail::update_in_parallel(rule, arrays); });
    if (i >= 0) result["update"].push_back(update);
  }
  std::cout << result << '\n';
}
