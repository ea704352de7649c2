// Not a test itself: trains a GPT with its state in memory or in files, and prints the losses, the
// peak of the process's memory, and the time of the fastest step.
//
//   offload_driver <folder for files> <stage> <layers> <width> <steps>
//                  <optimizer: none|nvme|nvme-ahead> <parameters: none|nvme>
//                  <limit of the data segment in MiB; 0: none>
//
// With nvme-ahead, updates begin during the backward pass; with nvme, after it.
// The limit holds from after the construction of the libraries on, in addition to what they take.
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/construction.hpp"
#include "unishard/trainer/engine.hpp"
#include "unishard/trainer/seeds.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

namespace {

using namespace unishard;
using namespace unishard::trainer;

constexpr std::int64_t kVocabulary = 256;
constexpr std::int64_t kContext = 32;

/// Returns a figure of /proc/self/status in bytes.
std::uint64_t figure(const std::string& name) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
  throw std::runtime_error("/proc/self/status has no " + name);
}

Residence residence_named(const std::string& name) {
  if (name == "none") return Residence::Device;
  if (name.starts_with("nvme")) return Residence::File;
  throw std::invalid_argument("no residence is called " + name);
}

at::Tensor windows(const MicroBatch& batch) {
  const at::Tensor tokens = at::empty({batch.samples, kContext + 1}, at::kLong);
  auto* const data = tokens.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i) {
    const std::uint64_t seed = seed_from({batch.first_sample, static_cast<std::uint64_t>(i)});
    data[i] = static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(kVocabulary));
  }
  return tokens;
}

Config config_of(char** arguments) {
  Config config;
  config.batch = {.train = 1, .micro = 1, .accumulation = {}};
  config.stage = static_cast<std::uint32_t>(std::stoul(arguments[2]));
  config.compute = DType::BFloat16;
  config.offload_optimizer.residence = residence_named(arguments[6]);
  config.offload_optimizer.nvme_path = arguments[1];
  config.offload_optimizer.super_offload = std::string_view(arguments[6]) == "nvme-ahead";
  config.offload_param.residence = residence_named(arguments[7]);
  config.offload_param.nvme_path = arguments[1];
  config.offload_param.max_in_cpu = 0;
  config.zero.max_live_parameters = config.zero.max_reuse_distance = 0;
  config.zero.prefetch_bucket_size = config.zero.reduce_bucket_size = 1;
  return config;
}

int run(char** arguments) {
  const Config config = config_of(arguments);
  if (config.offload_optimizer.residence == Residence::File) return_freed_memory();
  const auto communicator = make_single_communicator();
  at::empty({1}).fill_(1);
  const std::uint64_t before = figure("VmData"), resident = figure("VmRSS");
  if (const std::uint64_t limit = std::stoull(arguments[8]); limit > 0) {
    const rlimit bound{before + (limit << 20), before + (limit << 20)};
    if (::setrlimit(RLIMIT_DATA, &bound) != 0) throw std::runtime_error("setrlimit failed");
  }
  std::shared_ptr<CausalLanguageModel> model;
  {
    const ConstructionScope scope(placement_for(config, *communicator));
    model = make_language_model(GptConfig{.vocabulary = kVocabulary,
                                          .context = kContext,
                                          .layers = std::stol(arguments[3]),
                                          .width = std::stol(arguments[4]),
                                          .heads = 4});
  }
  const std::uint64_t constructed = figure("VmHWM");
  Engine engine(model, *communicator, config);
  const std::uint64_t prepared = figure("VmHWM");
  double fastest = std::numeric_limits<double>::infinity();
  for (std::int64_t step = 0; step < std::stol(arguments[5]); ++step) {
    const auto begin = std::chrono::steady_clock::now();
    const StepStats stats =
        engine.train_batch([&](const MicroBatch& batch) { return model->loss(windows(batch)); });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    fastest = std::min(fastest, took.count());
    fmt::print("loss {}\n", stats.loss);
  }
  const MemoryReport memory = engine.memory();
  fmt::print("parameters {}\nfiles {}\nmaster {} optimizer {} gradients {} peak of parameters {}\n",
             engine.parameter_count(), memory.files, memory.master, memory.optimizer,
             memory.gradients, memory.parameters_peak);
  fmt::print("memory beside the libraries: model {} engine {} steps {}\n", constructed - resident,
             prepared - resident, figure("VmHWM") - resident);
  fmt::print("fastest step {:.3f} s\n", fastest);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  at::set_num_threads(1);
  try {
    return run(argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "offload_driver: {}\n", error.what());
    return 3;
  }
}
