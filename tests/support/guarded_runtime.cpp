#include "guarded_runtime.hpp"

#include "device/tensor_bytes.hpp"
#include "guarded_device/guarded_device.hpp"
#include "optimizer/parallel_update.hpp"
#include "runtime/device_arrays.hpp"
#include "runtime/device_runtime.hpp"
#include "runtime/host_square_sums.hpp"

#include <utility>

namespace unishard::test {
namespace {

using namespace trainer;
using trainer::Stream;

void update(const Optimizer& optimizer, const Hyper& hyper, std::int64_t step, float gradient_scale,
            const UpdateTensors& tensors, c10::Stream) {
  std::vector<at::Tensor> written{tensors.weights};
  written.insert(written.end(), tensors.states.begin(), tensors.states.end());
  guarded::launch("the update", {tensors.gradients}, written,
                  [&](const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes) {
                    const UpdateTensors seen{.weights = writes[0],
                                             .gradients = reads[0],
                                             .states = {writes.begin() + 1, writes.end()}};
                    detail::update_in_parallel(
                        detail::rule_for(optimizer, hyper, step, gradient_scale),
                        detail::arrays_of(seen, at::kCPU));
                  });
}

void sum_squares(const at::Tensor& gradients, std::span<const std::uint8_t> levels,
                 const at::Tensor& sums, c10::Stream) {
  guarded::launch("the sum of squares", {gradients}, {sums},
                  [&](const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes) {
                    detail::group_square_sums(detail::floats_of(reads[0]), levels,
                                              {writes[0].data_ptr<double>(), levels.size()});
                  });
}

/// Leaves out the waits of one stream, and the events of one.
class BrokenRuntime final : public Runtime {
 public:
  BrokenRuntime(std::unique_ptr<Runtime> runtime, std::optional<Stream> deaf,
                std::optional<Stream> mute)
      : runtime_(std::move(runtime)), deaf_(deaf), mute_(mute) {}

  at::Device device() const override { return runtime_->device(); }
  void run(Stream stream, std::string_view name, std::function<void()> work) override {
    runtime_->run(stream, name, std::move(work));
  }
  EventPtr record(Stream stream) override {
    return stream == mute_ ? nullptr : runtime_->record(stream);
  }
  void wait(Stream stream, const EventPtr& event) override {
    if (stream != deaf_) runtime_->wait(stream, event);
  }
  std::unique_ptr<TraceMark> mark(Stream stream, std::string name) override {
    return runtime_->mark(stream, std::move(name));
  }
  void complete_trace() override { runtime_->complete_trace(); }
  void update(const Optimizer& optimizer, const Hyper& hyper, std::int64_t step,
              float gradient_scale, const UpdateTensors& tensors) override {
    runtime_->update(optimizer, hyper, step, gradient_scale, tensors);
  }
  void sum_squares(const at::Tensor& gradients, std::span<const std::uint8_t> levels,
                   const at::Tensor& sums) override {
    runtime_->sum_squares(gradients, levels, sums);
  }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::optional<Stream> deaf_, mute_;
};

}  // namespace

std::unique_ptr<Runtime> make_guarded_runtime(GuardedRuntimeOptions options) {
  guarded::install();
  auto runtime = detail::make_device_runtime(
      guarded::device(options.device),
      {.trace = options.trace, .update = update, .sum_squares = sum_squares});
  if (!options.deaf && !options.mute) return runtime;
  return std::make_unique<BrokenRuntime>(std::move(runtime), options.deaf, options.mute);
}

}  // namespace unishard::test
