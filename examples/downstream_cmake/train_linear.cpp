// Trains a linear layer for a few steps in one process and saves a checkpoint.
#include "unishard/format/error.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/engine.hpp"

#include <torch/nn/modules/linear.h>

#include <iostream>

namespace {

void train(const std::string& folder) {
  using namespace unishard::trainer;
  const auto communicator = make_single_communicator();
  const torch::nn::Linear model(torch::nn::LinearOptions(4, 1));
  const Config config =
      parse_config({{"train_batch_size", 8},
                    {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
                    {"zero_optimization", {{"stage", 2}}}});
  Engine engine(model.ptr(), *communicator, config);
  while (engine.global_steps() < 3)
    engine.train_batch([&](const MicroBatch& batch) {
      return torch::nn::Linear(model)->forward(at::ones({batch.samples, 4})).square().mean();
    });
  engine.save_checkpoint({.folder = folder}).wait();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: train_linear FOLDER\n";
    return 2;
  }
  try {
    train(argv[1]);
  } catch (const unishard::Error& error) {
    std::cerr << error.what() << "\n" << error.hint() << "\n";
    return unishard::exit_status(error.code());
  }
}
