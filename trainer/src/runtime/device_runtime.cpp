#include "runtime/device_runtime.hpp"

#include "device/device_copies.hpp"
#include "device/pinned_turns.hpp"
#include "runtime/device_trace.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <optional>
#include <utility>

namespace unishard::trainer::detail {
namespace {

struct DeviceEvent final : Event {
  explicit DeviceEvent(c10::Stream stream) : event(stream.device_type()) { event.record(stream); }
  c10::Event event;
};

class DeviceMark final : public TraceMark {
 public:
  DeviceMark(DeviceTrace& trace, std::string_view stream, std::string name, c10::Stream where)
      : trace_(trace), where_(where), number_(trace.begin(stream, std::move(name), where)) {}
  ~DeviceMark() override { trace_.end(number_, where_); }
  DeviceMark(const DeviceMark&) = delete;
  DeviceMark& operator=(const DeviceMark&) = delete;

 private:
  DeviceTrace& trace_;
  c10::Stream where_;
  std::size_t number_;
};

std::array<c10::Stream, kStreams> streams_of(at::Device device) {
  const c10::impl::VirtualGuardImpl device_interface(device.type());
  return {device_interface.getDefaultStream(device),
          device_interface.getStreamFromGlobalPool(device),
          device_interface.getStreamFromGlobalPool(device)};
}

class DeviceRuntime final : public Runtime {
 public:
  DeviceRuntime(at::Device device, DeviceRuntimeOptions options)
      : device_(device),
        update_(std::move(options.update)),
        gather_gradients_(std::move(options.gather_gradients)),
        sum_squares_(std::move(options.sum_squares)),
        streams_(streams_of(device)),
        turns_(device) {
    if (options.trace) trace_.emplace(*options.trace, of(Stream::Compute));
  }

  at::Device device() const override { return device_; }

  void run(Stream stream, std::string_view name, std::function<void()> work) override {
    const at::NoGradGuard no_grad;
    const c10::StreamGuard current(of(stream));
    const auto marked = mark(stream, std::string(name));
    work();
  }

  EventPtr record(Stream stream) override { return std::make_shared<DeviceEvent>(of(stream)); }

  void wait(Stream stream, const EventPtr& event) override {
    if (event) dynamic_cast<const DeviceEvent&>(*event).event.block(of(stream));
  }

  void finish(Stream stream) override { of(stream).synchronize(); }

  std::unique_ptr<TraceMark> mark(Stream stream, std::string name) override {
    if (!trace_) return nullptr;
    return std::make_unique<DeviceMark>(*trace_, name_of(stream), std::move(name), of(stream));
  }

  Trace* trace() const override { return trace_ ? &trace_->trace() : nullptr; }

  void complete_trace() override {
    if (trace_) trace_->complete();
  }

  void update(std::span<const UpdateSegment> segments, std::int64_t step, float gradient_scale,
              const UpdateTensors& tensors) override {
    const c10::StreamGuard current(of(Stream::Compute));
    update_(segments, step, gradient_scale, tensors, of(Stream::Compute));
  }

  void gather_gradients(std::span<const GradientPart> parts, const at::Tensor& to,
                        Gather how) override {
    gather_gradients_(parts, to, how, current_stream(device_));
  }

  void send(const at::Tensor& values, const at::Tensor& to) override {
    const at::NoGradGuard no_grad;
    const c10::StreamGuard current(of(Stream::Compute));
    const std::span<std::byte> bytes = turns_.next(to.nbytes());
    at::from_blob(bytes.data(), to.sizes(), to.scalar_type()).copy_(values);
    turns_.send(to);
  }

  void sum_squares(const at::Tensor& gradients, std::span<const std::uint8_t> levels,
                   const at::Tensor& sums) override {
    sum_squares_(gradients, levels, sums, current_stream(device_));
  }

 private:
  c10::Stream of(Stream stream) const { return streams_[static_cast<std::size_t>(stream)]; }

  at::Device device_;
  decltype(DeviceRuntimeOptions::update) update_;
  decltype(DeviceRuntimeOptions::gather_gradients) gather_gradients_;
  decltype(DeviceRuntimeOptions::sum_squares) sum_squares_;
  std::array<c10::Stream, kStreams> streams_;
  PinnedTurns turns_;
  std::optional<DeviceTrace> trace_;
};

}  // namespace

std::unique_ptr<Runtime> make_device_runtime(at::Device device, DeviceRuntimeOptions options) {
  return std::make_unique<DeviceRuntime>(device, std::move(options));
}

}  // namespace unishard::trainer::detail
