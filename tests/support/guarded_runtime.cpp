#include "guarded_runtime.hpp"

#include "device/tensor_bytes.hpp"
#include "guarded_device/guarded_device.hpp"
#include "optimizer/parallel_update.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <array>

namespace unishard::test {
namespace {

using namespace trainer;
using trainer::Event;
using trainer::Stream;

struct DeviceEvent final : Event {
  mutable c10::Event event{c10::DeviceType::PrivateUse1};
};

class GuardedRuntime final : public Runtime {
 public:
  explicit GuardedRuntime(const GuardedRuntimeOptions& options)
      : device_(guarded::device(options.device)),
        deaf_(options.deaf),
        streams_{stream_of({device_.index(), 0}), stream_of(guarded::new_stream(device_.index()))} {
  }

  at::Device device() const override { return device_; }

  void run(Stream stream, std::string_view, std::function<void()> work) override {
    const at::NoGradGuard no_grad;
    const c10::StreamGuard current(of(stream));
    work();
  }

  EventPtr record(Stream stream) override {
    auto event = std::make_shared<DeviceEvent>();
    event->event.record(of(stream));
    return event;
  }

  void wait(Stream stream, const EventPtr& event) override {
    if (event && stream != deaf_) dynamic_cast<const DeviceEvent&>(*event).event.block(of(stream));
  }

  std::unique_ptr<TraceMark> mark(Stream, std::string) override { return nullptr; }

  void update(const Optimizer& optimizer, const Hyper& hyper, std::int64_t step,
              float gradient_scale, const UpdateTensors& tensors) override {
    std::vector<at::Tensor> written{tensors.weights};
    written.insert(written.end(), tensors.states.begin(), tensors.states.end());
    const c10::StreamGuard current(of(Stream::Compute));
    guarded::launch(
        "the update", {tensors.gradients}, written,
        [&](const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes) {
          std::vector<std::span<float>> states;
          for (std::size_t i = 1; i < writes.size(); ++i)
            states.push_back(detail::floats_of(writes[i]));
          detail::update_in_parallel(
              detail::rule_for(optimizer, hyper, step, gradient_scale),
              detail::arrays_of(detail::floats_of(writes[0]), detail::floats_of(reads[0]), states));
        });
  }

 private:
  static c10::Stream stream_of(guarded::StreamKey key) {
    return c10::Stream(c10::Stream::UNSAFE, guarded::device(key.first), key.second);
  }
  const c10::Stream& of(Stream stream) const { return streams_[static_cast<std::size_t>(stream)]; }

  at::Device device_;
  std::optional<Stream> deaf_;
  std::array<c10::Stream, kStreams> streams_;
};

}  // namespace

std::unique_ptr<Runtime> make_guarded_runtime(GuardedRuntimeOptions options) {
  guarded::install();
  return std::make_unique<GuardedRuntime>(options);
}

}  // namespace unishard::test
