#include "guarded_device/device_guard.hpp"

#include "guarded_device/streams.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

namespace unishard::test::guarded {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

StreamKey key_of(const Stream& stream) { return {stream.device_index(), stream.id()}; }

Stream to_stream(StreamKey key) {
  return Stream(Stream::UNSAFE, Device(kDeviceType, key.first), key.second);
}

DeviceIndex index_of(Device device) {
  return device.index() < 0 ? current_device() : device.index();
}

/// Kernels run when they are called: at this time, all work before the event but late work is done.
struct Event {
  Clock clock;
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
};

Clock& clock_of(void* event) { return static_cast<Event*>(event)->clock; }

/// `virtual` without `override`: LibTorch 1.13 lacks the function.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }
  Device getDevice() const override { return {kDeviceType, current_device()}; }
  void setDevice(Device device) const override { exchange_device(index_of(device)); }
  void uncheckedSetDevice(Device device) const noexcept override {
    exchange_device(index_of(device));
  }
  Device exchangeDevice(Device device) const override {
    return {kDeviceType, exchange_device(index_of(device))};
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }

  Stream getStream(Device device) const noexcept override {
    return to_stream(current_stream(index_of(device)));
  }
  Stream getDefaultStream(Device device) const override { return to_stream({index_of(device), 0}); }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return to_stream(new_stream(index_of(device)));
  }
  virtual Stream getNewStream(Device device, int) const {
    return to_stream(new_stream(index_of(device)));
  }
  Stream exchangeStream(Stream stream) const noexcept override {
    const Stream former = getStream(stream.device());
    set_current_stream(key_of(stream));
    return former;
  }
  virtual void* getStreamNativeHandle(const Stream stream) const {
    return handle_of(key_of(stream));
  }
  bool queryStream(const Stream& stream) const override {
    synchronizeStream(stream);
    return true;
  }
  void synchronizeStream(const Stream& stream) const override {
    host_waited(guarded::record(key_of(stream)));
  }
  virtual void synchronizeDevice(const DeviceIndex) const {
    TORCH_CHECK(false, "guarded: name a stream to wait for");
  }

  void record(void** event, const Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    delete static_cast<Event*>(*event);
    *event = new Event{guarded::record(key_of(stream))};
  }
  void block(void* event, const Stream& stream) const override {
    if (event) make_wait(key_of(stream), clock_of(event));
  }
  /// Orders nothing: the threads that did not ask know nothing of the answer.
  bool queryEvent(void* event) const override { return !event || is_done(clock_of(event)); }
  virtual void synchronizeEvent(void* event) const {
    if (event) host_waited(clock_of(event));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  virtual double elapsedTime(void* from, void* to, const DeviceIndex) const {
    const auto time = static_cast<Event*>(to)->time - static_cast<Event*>(from)->time;
    return std::chrono::duration<double, std::milli>(time).count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    if (Block* const block = Memory::instance().find(data.get())) record_use(block, key_of(stream));
  }
};

}  // namespace

void register_device_guard() {
  static const c10::impl::DeviceGuardImplRegistrar registrar(kDeviceType, new Guard);
}

}  // namespace unishard::test::guarded
