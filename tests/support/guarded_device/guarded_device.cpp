#include "guarded_device/guarded_device.hpp"

#include "guarded_device/allocator.hpp"
#include "guarded_device/cpu_kernel.hpp"
#include "guarded_device/device_guard.hpp"
#include "guarded_device/own_operations.hpp"
#include "guarded_device/torch2_hooks.hpp"
#include "guarded_device/work.hpp"

#include <torch/library.h>
#include <torch/version.h>

namespace unishard::test::guarded {
namespace {

constexpr auto kKey = c10::DispatchKey::PrivateUse1;

/// Never destroyed: its destructor would take the operations back.
torch::Library& new_library(const char* space, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, space, key, __FILE__, __LINE__);
}

/// Names every operation that has a kernel for the CPU. A fallback alone would not do: LibTorch
/// prefers a composite kernel, which has other bits, to it.
void register_operations() {
  torch::Library& aten = new_library("aten", kKey);
  const std::set<std::string> own = register_own_operations(aten);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    constexpr std::string_view kSpace = "aten::";
    if (!name.name.starts_with(kSpace)) continue;
    std::string full = name.name.substr(kSpace.size());
    if (!name.overload_name.empty()) full += "." + name.overload_name;
    const auto operation = dispatcher.findSchema(name);
    if (own.contains(full) || !operation ||
        !operation->hasKernelForDispatchKey(c10::DispatchKey::CPU))
      continue;
    aten.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel>());
  }
  new_library("_", kKey).fallback(torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel>());
#if TORCH_VERSION_MAJOR < 2
  // LibTorch 2 has it: operations without a formula for gradients need it.
  new_library("_", c10::DispatchKey::AutogradPrivateUse1)
      .fallback(torch::CppFunction::makeFallthrough());
#endif
}

bool register_all() {
  install_fault_handler();
  c10::SetAllocator(kDeviceType, allocator());
  register_device_guard();
  register_torch2_hooks();
  register_operations();
  return true;
}

}  // namespace

void install() { [[maybe_unused]] static const bool done = register_all(); }

void launch(const char* name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes,
            const std::function<void(const std::vector<at::Tensor>&,
                                     const std::vector<at::Tensor>&)>& kernel) {
  Work work(name);
  Aliases aliases(name);
  const auto prepare = [&](const std::vector<at::Tensor>& tensors, bool written) {
    std::vector<at::Tensor> prepared;
    for (const at::Tensor& each : tensors) {
      work.add(each, written);
      prepared.push_back(aliases.to_cpu(each));
    }
    return prepared;
  };
  const auto from = prepare(reads, false), to = prepare(writes, true);
  work.begin(writes.front().device().index());
  kernel(from, to);
}

}  // namespace unishard::test::guarded
