#include "guarded_device/aliases.hpp"

#include "guarded_device/allocator.hpp"
#include "guarded_device/streams.hpp"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

namespace unishard::test::guarded {
namespace {

using c10::DispatchKey;
using c10::StorageImpl;

at::Tensor tensor_over(c10::Storage storage, DispatchKey key, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(key), like.dtype());
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return tensor;
}

void* kernel_address(StorageImpl& storage) {
  const void* const seen = storage.data_ptr().get();
  return seen ? Memory::instance().usable(seen) : nullptr;
}

}  // namespace

Block* block_of(const at::Tensor& tensor, const char* operation) {
  const void* const address = tensor.storage().data_ptr().get();
  if (!address) {
    TORCH_CHECK(tensor.numel() == 0, "guarded: ", operation,
                " uses a tensor whose memory was released");
    return nullptr;
  }
  Block* const block = Memory::instance().find(address);
  TORCH_CHECK(block, "guarded: ", operation, " got a device tensor in other memory");
  TORCH_CHECK(!block->freed, "guarded: ", operation, " uses freed ", block->describe());
  return block;
}

at::Tensor Aliases::to_cpu(const at::Tensor& tensor) {
  for (const auto& [device, cpu] : tensors_) {
    if (device.is_same(tensor)) return cpu;
  }
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  StoragePtr& alias = storages_[storage];
  if (!alias) {
    alias = c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), storage->nbytes(),
                                             c10::DataPtr(kernel_address(*storage), c10::kCPU),
                                             c10::GetCPUAllocator(), true);
    kept_.push_back(tensor.storage());
  }
  tensors_.emplace_back(tensor, tensor_over(c10::Storage(alias), DispatchKey::CPU, tensor));
  return tensors_.back().second;
}

at::Tensor Aliases::to_device(const at::Tensor& result) {
  if (!result.defined() || !result.device().is_cpu() || !result.has_storage()) return result;
  for (const auto& [device, cpu] : tensors_) {
    if (cpu.is_same(result)) return device;
  }
  auto* const storage = result.storage().unsafeGetStorageImpl();
  for (const auto& [device, alias] : storages_) {
    if (alias.get() != storage) continue;
    return tensor_over(c10::Storage(StoragePtr::reclaim_copy(device)), DispatchKey::PrivateUse1,
                       result);
  }
  StoragePtr& copy = fresh_[storage];
  if (!copy) copy = copy_to_device(*storage);
  return tensor_over(c10::Storage(copy), DispatchKey::PrivateUse1, result);
}

void Aliases::write_back() {
  for (const auto& [device, alias] : storages_) {
    if (alias->data_ptr().get() == kernel_address(*device) && alias->nbytes() == device->nbytes())
      continue;
    const StoragePtr moved = copy_to_device(*alias);
    device->set_data_ptr_noswap(std::move(const_cast<c10::DataPtr&>(moved->data_ptr())));
    device->set_nbytes(alias->nbytes());
  }
  for (const auto& [device, cpu] : tensors_) {
    if (device.sizes() == cpu.sizes() && device.strides() == cpu.strides() &&
        device.storage_offset() == cpu.storage_offset())
      continue;
    device.unsafeGetTensorImpl()->set_storage_offset(cpu.storage_offset());
    device.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
  }
}

Aliases::StoragePtr Aliases::copy_to_device(const StorageImpl& from) const {
  auto to =
      c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), from.nbytes(),
                                       allocate(from.nbytes(), operation_), allocator(), true);
  if (void* const address = kernel_address(*to))
    std::memcpy(address, from.data_ptr().get(), from.nbytes());
  return to;
}

}  // namespace unishard::test::guarded
