#include "unishard/format/error.hpp"

#include "device/tensor_bytes.hpp"
#include "state/gather_schedule.hpp"
#include "state/recomputed_units.hpp"
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

bool can_lie_flat(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_quantized();
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : named) tensors.push_back(each.tensor);
  return tensors;
}

void require_values(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    if (has_values(parameter.value())) continue;
    raise(ErrorCode::InvalidArgument,
          "parameter " + quote(parameter.key()) + " of " + module.name() +
              " is shared with a unit that was constructed before",
          "tie parameters outside of units");
  }
}

void cast_to_compute(const std::vector<at::Tensor*>& tensors, const UnitLayout& layout) {
  for (at::Tensor* each : tensors) {
    if (each->is_floating_point()) *each = each->to(layout.stored_type()).to(layout.memory_type());
  }
}

/// Moves to the device, and converts as DeepSpeed does with a module that trains in 16 bits.
void move_untrained(torch::nn::Module& module, const Placement& placement) {
  const at::NoGradGuard no_grad;
  const auto cast = [&placement](at::Tensor& tensor) {
    at::Tensor moved = tensor.to(placement.device);
    if (moved.is_floating_point()) {
      const at::ScalarType stored = scalar_type(placement.compute);
      moved = moved.to(stored).to(kernel_type(stored, placement.device));
    }
    tensor.set_data(moved.contiguous());
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

UnitParameters unit_parameters(torch::nn::Module& module, const std::string& prefix) {
  UnitParameters found;
  visit_modules(module, prefix, [&](torch::nn::Module& each, const std::string& path) {
    for (const auto& parameter : each.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = parameter.value();
      std::vector<NamedTensor>& list = tensor.requires_grad() ? found.trained : found.frozen;
      const bool is_tied = std::ranges::any_of(
          list, [&](const NamedTensor& other) { return other.tensor.is_same(tensor); });
      if (!is_tied && (tensor.requires_grad() || can_lie_flat(tensor)))
        list.push_back({join_names(path, parameter.key()), tensor});
    }
  });
  return found;
}

bool has_values(const at::Tensor& parameter) {
  return parameter.numel() == 0 || !parameter.has_storage() || parameter.storage().nbytes() > 0;
}

std::unique_ptr<FlatUnit> shard_unit(torch::nn::Module& module, const Placement& placement,
                                     const std::shared_ptr<MemoryMeter>& meter) {
  visit_modules(module, "", [&](torch::nn::Module& each, const std::string&) {
    require_values(each);
    move_untrained(each, placement);
  });
  const UnitParameters named = unit_parameters(module, "");
  const bool shards_frozen = placement.stage == 3;
  return std::make_unique<FlatUnit>(
      tensors_of(named.trained),
      shards_frozen ? tensors_of(named.frozen) : std::vector<at::Tensor>(), placement, meter);
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

UnitBase::ForwardScope::ForwardScope(UnitBase& unit) : unit_(unit) {
  const detail::FlatUnit* const flat = unit_.flat_.get();
  detail::StepContext* const context = unit_.context_;
  if (!context) {
    if (!flat || flat->placement().stage < 3) return;
    raise(ErrorCode::InvalidArgument,
          "a stage 3 unit runs only while an Engine is attached to its model");
  }
  dropout_ = std::make_unique<detail::DropoutScope>(*context, unit_.index_);
  detail::count_if_recomputed(*unit_.flat_);
  context->schedule->acquire(*unit_.flat_);
  mark_ = context->runtime->mark(Stream::Compute, "forward " + flat->name());
  ++context->depth;
}

UnitBase::ForwardScope::~ForwardScope() {
  mark_.reset();
  if (!unit_.context_) return;
  --unit_.context_->depth;
  unit_.context_->schedule->release(*unit_.flat_);
}

void UnitBase::ForwardScope::watch_inputs(const std::vector<at::Tensor*>& inputs) {
  if (!unit_.context_) return;
  if (unit_.context_->casts_inputs && unit_.context_->depth == 1)
    detail::cast_to_compute(inputs, unit_.flat_->layout());
  if (!at::GradMode::is_enabled()) return;
  for (at::Tensor* each : inputs) {
    if (!each->requires_grad()) continue;
    *each = each->view_as(*each);
    inputs_.push_back(*each);
  }
}

/// Autograd runs the operations that were made last first, so all of this unit are done when the
/// gradients of its inputs' aliases are complete. Without these gradients the end of the pass
/// releases it.
void UnitBase::ForwardScope::watch_outputs(const std::vector<at::Tensor*>& outputs) {
  if (!unit_.context_) return;
  detail::FlatUnit* const flat = unit_.flat_.get();
  detail::GatherSchedule* const schedule = unit_.context_->schedule;
  bool has_backward = false;
  for (at::Tensor* output : outputs) {
    if (!output->requires_grad()) continue;
    has_backward = true;
    output->register_hook([flat, schedule](const at::Tensor&) { schedule->acquire(*flat); });
  }
  if (!has_backward) return;
  flat->begin_use();
  const auto left = std::make_shared<std::size_t>(inputs_.size());
  for (const at::Tensor& input : inputs_) {
    input.register_hook([flat, left](const at::Tensor&) {
      if (--*left == 0) flat->end_use();
    });
  }
}

}  // namespace unishard::trainer
