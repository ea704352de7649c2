#include "state/generator_scope.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/version.h>

#include <map>
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

namespace {

/// Generators that nobody uses now. Thread-safe.
class GeneratorPool {
 public:
  /// Returns one for the device of `like`, with any state.
  at::Generator take(at::Generator like) {
    {
      const std::lock_guard lock(mutex_);
      std::vector<at::Generator>& free = free_[key_of(like)];
      if (!free.empty()) {
        at::Generator one = std::move(free.back());
        free.pop_back();
        return one;
      }
    }
    const std::lock_guard lock(like.mutex());
    return like.clone();
  }
  void give_back(at::Generator one) {
    const std::lock_guard lock(mutex_);
    free_[key_of(one)].push_back(std::move(one));
  }

 private:
  using Key = std::pair<c10::DeviceType, int>;
  static Key key_of(const at::Generator& one) {
    return {one.device().type(), one.device().index()};
  }

  std::mutex mutex_;
  std::map<Key, std::vector<at::Generator>> free_;
};

/// Lives as long as the process, because threads may end after its static objects.
GeneratorPool& pool() {
  static auto* const all = new GeneratorPool;
  return *all;
}

}  // namespace

OwnGenerator::OwnGenerator(at::Device device, std::uint64_t seed)
    : generator_(pool().take(default_generators(device).back())) {
  generator_.set_current_seed(seed);
}

OwnGenerator::~OwnGenerator() { pool().give_back(std::move(generator_)); }

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
