#include "guarded_device/own_operations.hpp"

#include "guarded_device/allocator.hpp"
#include "guarded_device/work.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

namespace unishard::test::guarded {
namespace {

using c10::Device;
using c10::DispatchKey;
template <class T>
using Optional = c10::optional<T>;

const c10::DispatchKeySet kKeys(DispatchKey::PrivateUse1);

c10::OptionalDeviceGuard guard_for(const Optional<Device>& device) {
  return c10::OptionalDeviceGuard(
      device && device->has_index() ? *device : Device(kDeviceType, current_device()));
}

at::Tensor empty(at::IntArrayRef sizes, Optional<at::ScalarType> type, Optional<at::Layout>,
                 Optional<Device> device, Optional<bool>, Optional<at::MemoryFormat> format) {
  const auto guard = guard_for(device);
  return at::detail::empty_generic(sizes, allocator(), kKeys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         Optional<at::ScalarType> type, Optional<at::Layout>,
                         Optional<Device> device, Optional<bool>) {
  const auto guard = guard_for(device);
  return at::detail::empty_strided_generic(sizes, strides, allocator(), kKeys,
                                           c10::dtype_or_default(type));
}

/// The host waits unless `non_blocking`, as with CUDA and pinned memory.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  TORCH_CHECK(!is_guarded(from) || !is_guarded(to) || from.device() == to.device(),
              "guarded: a copy from device to device");
  const Device device = is_guarded(to) ? to.device() : from.device();
  const c10::DeviceGuard guard(device);
  Work work("a copy");
  Aliases aliases("a copy");
  const auto prepare = [&](const at::Tensor& tensor, bool writes) {
    if (!is_guarded(tensor)) return tensor;
    work.add(tensor, writes);
    return aliases.to_cpu(tensor);
  };
  const at::Tensor source = prepare(from, false);
  at::Tensor target = prepare(to, true);
  work.begin(device.index());
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    target.copy_(source);
  }
  const Clock done = record(current_stream(device.index()));
  if (is_guarded(from) != is_guarded(to)) count_copy(is_guarded(from), non_blocking, to.nbytes());
  if (!non_blocking && !is_guarded(to)) host_waited(done);
  if (!non_blocking && !is_guarded(from)) host_copied(done);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor& set_part_of_storage(at::Tensor& self, at::Storage storage, std::int64_t offset,
                                at::IntArrayRef sizes, at::IntArrayRef strides) {
  TORCH_CHECK(storage.device() == self.device(), "guarded: set_ with a storage of another device");
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (strides.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage) {
  const auto elements = static_cast<std::int64_t>(storage.nbytes() / self.itemsize());
  return set_part_of_storage(self, std::move(storage), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_part_of_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                             source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_part_of_storage(
      self, at::Storage(c10::Storage::use_byte_size_t(), 0, allocator(), true), 0, {0}, {});
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  if (Block* const block = block_of(tensor, "record_stream"))
    record_use(block, {stream.device_index(), stream.id()});
}

/// Module::to and set_data() may turn a CPU tensor into a device tensor.
bool has_compatible_type(const at::Tensor&, const at::Tensor&) { return true; }

}  // namespace

std::set<std::string> register_own_operations(torch::Library& aten) {
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten.impl("set_", TORCH_FN(set_nothing));
  aten.impl("set_.source_Storage", TORCH_FN(set_storage));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_part_of_storage));
  aten.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  aten.impl("record_stream", TORCH_FN(record_stream));
  aten.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_type));
  return {"empty.memory_format",
          "empty_strided",
          "_copy_from",
          "_copy_from_and_resize",
          "set_",
          "set_.source_Storage",
          "set_.source_Storage_storage_offset",
          "set_.source_Tensor",
          "record_stream",
          "_has_compatible_shallow_copy_type"};
}

}  // namespace unishard::test::guarded
