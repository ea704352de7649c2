#include "guarded_device/cpu_kernel.hpp"

#include "guarded_device/generator.hpp"
#include "guarded_device/work.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <span>

namespace unishard::test::guarded {
namespace {

/// As CUDA does, these take indices in host memory.
bool takes_host_indices(const std::string& operation) {
  return operation.starts_with("aten::index") || operation.starts_with("aten::_index_put") ||
         operation.starts_with("aten::_unsafe_index");
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

bool is_view(const c10::FunctionSchema& schema) {
  return !schema.returns().empty() &&
         std::ranges::all_of(schema.returns(), [](const c10::Argument& each) {
           return each.alias_info() && !each.alias_info()->isWrite();
         });
}

/// Replaces each tensor in a value by change(tensor).
template <class Change>
void change_tensors(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    auto list = value.toTensorVector();
    for (at::Tensor& each : list) each = change(each);
    value = c10::IValue(list);
  } else if (value.isOptionalTensorList()) {
    const auto list = value.toOptionalTensorList();
    auto changed = list.copy();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const c10::optional<at::Tensor> each = list.get(i);
      if (each && each->defined()) changed.set(i, change(*each));
    }
    value = c10::IValue(changed);
  }
}

class Call {
 public:
  Call(const c10::OperatorHandle& operation, torch::jit::Stack& stack)
      : schema_(operation.schema()),
        name_(schema_.name().c_str()),
        arguments_(std::span(stack).last(schema_.arguments().size())) {
    find_device();
    refuse_host_tensors();
  }

  void run(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
    const c10::DeviceGuard guard(c10::Device(kDeviceType, device_));
    for (std::size_t i = 0; i < arguments_.size(); ++i) place_on_host(i);
    Aliases aliases(name_);
    prepare_tensors(aliases);
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    }
    aliases.write_back();
    for (c10::IValue& each : std::span(*stack).last(schema_.returns().size()))
      change_tensors(each, [&](const at::Tensor& result) { return aliases.to_device(result); });
  }

 private:
  template <class Change>
  void change_arguments(const Change& change) {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const bool writes = is_written(schema_.arguments()[i]);
      change_tensors(arguments_[i],
                     [&](const at::Tensor& tensor) { return change(tensor, writes); });
    }
  }

  void find_device() {
    bool found = false;
    change_arguments([&](const at::Tensor& tensor, bool) {
      if (!is_guarded(tensor)) return tensor;
      TORCH_CHECK(!found || device_ == tensor.device().index(), "guarded: ", name_,
                  " got tensors of two devices");
      found = true;
      device_ = tensor.device().index();
      return tensor;
    });
    has_tensors_ = found;
    for (const c10::IValue& each : arguments_) {
      if (!found && each.isDevice() && each.toDevice().type() == kDeviceType &&
          each.toDevice().has_index())
        device_ = each.toDevice().index();
    }
  }

  void refuse_host_tensors() {
    if (!has_tensors_ || takes_host_indices(name_)) return;
    change_arguments([&](const at::Tensor& tensor, bool) {
      TORCH_CHECK(!tensor.defined() || !tensor.device().is_cpu() || tensor.dim() == 0,
                  "guarded: ", name_, " got a CPU tensor of sizes ", tensor.sizes(),
                  " beside a device's");
      return tensor;
    });
  }

  void place_on_host(std::size_t index) {
    c10::IValue& value = arguments_[index];
    if (value.isDevice() && value.toDevice().type() == kDeviceType) {
      value = c10::Device(c10::kCPU);
    } else if (value.isGenerator() || schema_.arguments()[index].name() == "generator") {
      value = generator_on_host(value, device_);
    }
  }

  void prepare_tensors(Aliases& aliases) {
    const bool uses_memory = !is_view(schema_);
    Work work(name_);
    change_arguments([&](const at::Tensor& tensor, bool writes) {
      if (!is_guarded(tensor)) return tensor;
      if (uses_memory) work.add(tensor, writes);
      return aliases.to_cpu(tensor);
    });
    if (uses_memory) work.begin(device_);
  }

  const c10::FunctionSchema& schema_;
  const char* name_;
  std::span<c10::IValue> arguments_;
  c10::DeviceIndex device_ = current_device();
  bool has_tensors_ = false;
};

}  // namespace

void run_cpu_kernel(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  Call(operation, *stack).run(operation, stack);
}

}  // namespace unishard::test::guarded
