#include "state/generator_scope.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace unishard::trainer::detail {

GeneratorScope::GeneratorScope(std::uint64_t seed)
    : generator_(at::detail::getDefaultCPUGenerator()) {
  const std::lock_guard lock(generator_.mutex());
  former_ = generator_.get_state();
  generator_.set_current_seed(seed);
}

GeneratorScope::~GeneratorScope() {
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(former_);
}

}  // namespace unishard::trainer::detail
