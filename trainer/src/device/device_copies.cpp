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

void send_behind(const at::Tensor& to, std::span<const std::byte> from) {
  const at::NoGradGuard no_grad;
  // The copy only reads.
  auto* const bytes = const_cast<std::byte*>(from.data());
  to.copy_(at::from_blob(bytes, to.sizes(), to.scalar_type()), /*non_blocking=*/true);
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

/// Returns a stream of this object that waits for what the current stream has been given.
c10::Stream DeviceCopies::stream_behind(at::Device device) {
  const c10::impl::VirtualGuardImpl device_interface(device.type());
  auto known = streams_.find(device.index());
  if (known == streams_.end())
    known =
        streams_.emplace(device.index(), device_interface.getStreamFromGlobalPool(device)).first;
  c10::Event written(device.type());
  written.record(current_stream(device));
  written.block(known->second);
  return known->second;
}

void DeviceCopies::start(std::span<std::byte> to, const at::Tensor& from) {
  if (from.is_cpu()) return copy_to(to, from);
  const c10::StreamGuard current(stream_behind(from.device()));
  copy_behind(to, from);
}

void DeviceCopies::start(const at::Tensor& to, std::span<const std::byte> from) {
  const c10::StreamGuard current(stream_behind(to.device()));
  send_behind(to, from);
}

void DeviceCopies::make_current_stream_wait(at::Device device) const {
  const auto known = streams_.find(device.index());
  if (known == streams_.end()) return;
  c10::Event copied(device.type());
  copied.record(known->second);
  copied.block(current_stream(device));
}

void DeviceCopies::wait() {
  for (const auto& [index, stream] : streams_) stream.synchronize();
}

}  // namespace unishard::trainer::detail
