#pragma once
// CPU tensors over the second mapping, for the time of one operation.
#include "guarded_device/streams.hpp"

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace unishard::test::guarded {

inline bool is_guarded(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDeviceType;
}

/// Returns the block of a device tensor; null when it has no elements.
/// Throws: c10::Error, naming the operation, when the memory was released or is not the device's.
Block* block_of(const at::Tensor& tensor, const char* operation);

/// Device tensors that share a storage get aliases that share one, so views remain views.
/// Lifetime: the name of the operation outlives this object.
class Aliases {
 public:
  explicit Aliases(const char* operation) : operation_(operation) {}

  at::Tensor to_cpu(const at::Tensor& tensor);
  /// Returns the device tensor of what the CPU's kernel returned; new results are copied.
  at::Tensor to_device(const at::Tensor& result);
  /// Gives the device tensors the sizes and the memory that the kernel gave their aliases.
  void write_back();

 private:
  using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;
  StoragePtr copy_to_device(const c10::StorageImpl& from) const;

  const char* operation_;
  std::unordered_map<c10::StorageImpl*, StoragePtr> storages_;  ///< aliases by device storage
  std::unordered_map<c10::StorageImpl*, StoragePtr> fresh_;     ///< by the kernel's storage
  std::vector<c10::Storage> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

}  // namespace unishard::test::guarded
