#include "state/gathered_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

namespace unishard::trainer::detail {

GatheredParameters::GatheredParameters(std::vector<at::Tensor> parameters, const UnitLayout& layout,
                                       std::shared_ptr<MemoryMeter> meter)
    : parameters_(std::move(parameters)), meter_(std::move(meter)) {
  const at::NoGradGuard no_grad;
  flat_ =
      at::zeros({layout.padded}, at::device(layout.placement.device).dtype(layout.memory_type()));
  meter_->add(static_cast<std::int64_t>(flat_.nbytes()));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor slot = layout.slot(flat_, i);
    slot.copy_(parameters_[i].reshape({-1}).to(layout.stored_type()));
    parameters_[i].set_data(slot.view(parameters_[i].sizes()));
  }
}

void GatheredParameters::allocate() {
  if (has_memory_) return;
  const c10::DeviceGuard current(flat_.device());  // where the allocator allocates
  auto* storage = flat_.storage().unsafeGetStorageImpl();
  const std::size_t bytes = static_cast<std::size_t>(flat_.numel()) * flat_.itemsize();
  storage->set_data_ptr_noswap(c10::GetAllocator(flat_.device().type())->allocate(bytes));
  storage->set_nbytes(bytes);
  meter_->add(static_cast<std::int64_t>(bytes));
  has_memory_ = true;
}

void GatheredParameters::free() {
  if (!has_memory_) return;
  auto* storage = flat_.storage().unsafeGetStorageImpl();
  meter_->add(-static_cast<std::int64_t>(storage->nbytes()));
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, flat_.device()));
  storage->set_nbytes(0);
  has_memory_ = false;
}

}  // namespace unishard::trainer::detail
