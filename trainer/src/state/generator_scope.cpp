#include "state/generator_scope.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/version.h>

#include <mutex>

namespace unishard::trainer::detail {

std::vector<at::Generator> default_generators(at::Device device) {
  std::vector<at::Generator> generators{at::detail::getDefaultCPUGenerator()};
#if TORCH_VERSION_MAJOR < 2
  const bool has_own = device.is_cuda();
#else
  const bool has_own = !device.is_cpu();
#endif
  if (has_own) generators.push_back(at::globalContext().defaultGenerator(device));
  return generators;
}

at::Generator make_generator(at::Device device, std::uint64_t seed) {
  at::Generator shared = default_generators(device).back();
  const std::unique_lock lock(shared.mutex());
  at::Generator generator = shared.clone();
  generator.set_current_seed(seed);
  return generator;
}

GeneratorScope::GeneratorScope(at::Device device, std::uint64_t seed) {
  for (at::Generator& each : default_generators(device)) {
    const std::lock_guard lock(each.mutex());
    former_.emplace_back(each, each.get_state());
    each.set_current_seed(seed);
  }
}

GeneratorScope::~GeneratorScope() {
  for (auto& [generator, state] : former_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace unishard::trainer::detail
