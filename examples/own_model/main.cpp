// A model of your own under the ZeRO engine. Start it alone, or with several ranks:
//
//   unishard launch --nproc-per-node 2 -- own_model ds_config.json runs/own
//
// It continues from its last checkpoint, with any number of ranks and at any stage.
#include "unishard/trainer/construction.hpp"
#include "unishard/trainer/engine.hpp"
#include "unishard/trainer/sharded.hpp"

#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

using namespace unishard::trainer;

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(64, 256));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(256, 64));
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(x))); }
};

struct Model : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(1, 64));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(64, 1));
  std::vector<Sharded<BlockImpl>> blocks;  // each is gathered and reduced as a whole
  Model() {
    for (const char* name : {"first", "second", "third"})
      register_module(name, blocks.emplace_back());
  }
  at::Tensor loss(const MicroBatch& batch) {  // learns sin(x); draws are equal on every world size
    const at::Tensor x = torch::rand({batch.samples, 1}) * 6 - 3;
    at::Tensor y = in(x.to(in->weight.dtype()));
    for (auto& block : blocks) y = block(y);
    return torch::mse_loss(out(y).to(torch::kFloat), x.sin());
  }
};

std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

void train(const std::string& config_file, const std::string& folder) {
  std::ifstream file(config_file);
  const Config config = parse_config(unishard::Json::parse(file));
  const auto ranks = make_communicator(read_rank_environment(variable));
  std::shared_ptr<Model> model;
  {
    const ConstructionScope scope(placement_for(config, *ranks));  // no rank holds the whole model
    model = std::make_shared<Model>();
  }
  Engine engine(model, *ranks, config);
  if (std::filesystem::exists(folder)) engine.load_checkpoint(folder);
  for (const std::int64_t end = engine.global_steps() + 50; engine.global_steps() < end;) {
    const StepStats done =
        engine.train_batch([&](const auto& batch) { return model->loss(batch); });
    if (done.step % 10 == 0 && ranks->rank() == 0)
      std::cout << "step " << done.step << " loss " << done.loss << std::endl;
  }
  engine.save_checkpoint({.folder = folder}).wait();
  ranks->barrier();
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: own_model CONFIG FOLDER\n";
    return 2;
  }
  try {
    train(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
