#include "device/device_copies.hpp"

#include "device/tensor_bytes.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

namespace unishard::trainer::detail {

void copy_behind(std::span<std::byte> to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  at::from_blob(to.data(), from.sizes(), from.scalar_type()).copy_(from, /*non_blocking=*/true);
}

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

DeviceCopies::~DeviceCopies() {
  try {
    wait();
  } catch (const std::exception&) {  // the device failed: nothing is copied any more
  }
}

void DeviceCopies::start(std::span<std::byte> to, const at::Tensor& from) {
  if (from.is_cpu()) return copy_to(to, from);
  const at::Device device = from.device();
  const c10::impl::VirtualGuardImpl device_interface(device.type());
  auto known = streams_.find(device.index());
  if (known == streams_.end())
    known =
        streams_.emplace(device.index(), device_interface.getStreamFromGlobalPool(device)).first;
  c10::Event written(device.type());
  written.record(current_stream(device));
  written.block(known->second);
  const c10::StreamGuard current(known->second);
  copy_behind(to, from);
}

void DeviceCopies::wait() {
  for (const auto& [index, stream] : streams_) stream.synchronize();
}

}  // namespace unishard::trainer::detail
