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

void GatheredParameters::set_memory(at::DataPtr memory, std::size_t bytes) {
  auto* const storage = flat_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(bytes);
}

void GatheredParameters::allocate() {
  if (has_memory_) return;
  const c10::DeviceGuard current(flat_.device());  // where the allocator allocates
  const std::size_t bytes = static_cast<std::size_t>(flat_.numel()) * flat_.itemsize();
  set_memory(c10::GetAllocator(flat_.device().type())->allocate(bytes), bytes);
  meter_->add(static_cast<std::int64_t>(bytes));
  has_memory_ = true;
}

void GatheredParameters::borrow(const at::Tensor& values) {
  if (has_memory_) return;
  set_memory(at::DataPtr(values.data_ptr(), values.device()), values.nbytes());
  has_memory_ = is_borrowed_ = true;
}

void GatheredParameters::free() {
  if (!has_memory_) return;
  if (!is_borrowed_) meter_->add(-static_cast<std::int64_t>(flat_.storage().nbytes()));
  set_memory(at::DataPtr(nullptr, flat_.device()), 0);
  has_memory_ = is_borrowed_ = false;
}

}  // namespace unishard::trainer::detail
