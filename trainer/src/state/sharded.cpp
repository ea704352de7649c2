#include "unishard/format/error.hpp"

#include "device/tensor_bytes.hpp"
#include "state/step_context.hpp"

#include <ATen/core/grad_mode.h>

namespace unishard::trainer {
namespace detail {
namespace {

template <class Visit>
void visit_modules(torch::nn::Module& module, const std::string& prefix, const Visit& visit) {
  visit(module, prefix);
  for (const auto& child : module.named_children()) {
    if (dynamic_cast<UnitBase*>(child.value().get())) continue;
    visit_modules(*child.value(), join_names(prefix, child.key()), visit);
  }
}

/// Converts as DeepSpeed does with a module that trains in 16 bits.
void cast_untrained(torch::nn::Module& module, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto cast = [dtype](at::Tensor& tensor) {
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype).contiguous());
  };
  for (auto& parameter : module.named_parameters(/*recurse=*/false)) {
    if (!parameter.value().requires_grad()) cast(parameter.value());
  }
  for (auto& buffer : module.named_buffers(/*recurse=*/false)) cast(buffer.value());
}

}  // namespace

std::string join_names(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::vector<NamedTensor> unit_parameters(torch::nn::Module& module, const std::string& prefix) {
  std::vector<NamedTensor> found;
  visit_modules(module, prefix, [&](torch::nn::Module& each, const std::string& path) {
    for (const auto& parameter : each.named_parameters(/*recurse=*/false)) {
      const bool tied = std::ranges::any_of(
          found, [&](const NamedTensor& other) { return other.tensor.is_same(parameter.value()); });
      if (!tied && parameter.value().requires_grad()) {
        found.push_back({join_names(path, parameter.key()), parameter.value()});
      }
    }
  });
  return found;
}

std::unique_ptr<FlatUnit> shard_unit(torch::nn::Module& module, const Placement& placement,
                                     const std::shared_ptr<MemoryMeter>& meter) {
  visit_modules(module, "", [&](torch::nn::Module& each, const std::string&) {
    cast_untrained(each, scalar_type(placement.compute));
  });
  std::vector<at::Tensor> parameters;
  for (NamedTensor& each : unit_parameters(module, ""))
    parameters.push_back(std::move(each.tensor));
  return std::make_unique<FlatUnit>(std::move(parameters), placement, meter);
}

}  // namespace detail

UnitBase::UnitBase() {
  if (auto* scope = ConstructionScope::current()) scope->begin_unit();
}

UnitBase::~UnitBase() = default;

void UnitBase::finish_construction(torch::nn::Module& self) {
  const auto* scope = ConstructionScope::current();
  if (scope) flat_ = detail::shard_unit(self, scope->placement(), scope->meter());
}

at::Tensor UnitBase::run(const at::Tensor& input, const Forward& forward) {
  if (!context_) {
    if (flat_ && flat_->placement().stage == 3) {
      raise(ErrorCode::InvalidArgument,
            "a stage 3 unit runs only while an Engine is attached to its model");
    }
    return forward(input);
  }
  const detail::DropoutScope dropout_scope(*context_, index_);
  context_->used_units.push_back(index_);
  detail::FlatUnit* const flat = flat_.get();
  flat->gather();
  at::Tensor output = forward(input);
  flat->release();
  if (output.requires_grad()) {
    output.register_hook([flat](const at::Tensor&) { flat->gather(); });
    flat->begin_use();
    // Autograd runs the operations that were made last first, so all of this unit are done when the
    // gradient of its input is complete. Without that gradient the end of the pass releases it.
    if (input.requires_grad()) input.register_hook([flat](const at::Tensor&) { flat->end_use(); });
  }
  return output;
}

}  // namespace unishard::trainer
