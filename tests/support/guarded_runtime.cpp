#include "guarded_runtime.hpp"

#include "device/tensor_bytes.hpp"
#include "guarded_device/guarded_device.hpp"
#include "optimizer/parallel_update.hpp"
#include "runtime/device_arrays.hpp"
#include "runtime/device_runtime.hpp"
#include "runtime/host_gradients.hpp"
#include "runtime/host_square_sums.hpp"

#include <utility>

namespace unishard::test {
namespace {

using namespace trainer;
using trainer::Stream;

/// One launch, as CUDA's kernel has it. Weights and states are read and written.
void update(std::span<const UpdateSegment> segments, std::int64_t step, float gradient_scale,
            const UpdateTensors& tensors, c10::Stream) {
  std::vector<at::Tensor> read{tensors.weights}, written;
  read.insert(read.end(), tensors.states.begin(), tensors.states.end());
  written = read;
  read.push_back(tensors.gradients);
  if (tensors.rounded.defined()) written.push_back(tensors.rounded);
  guarded::launch("the update", read, written,
                  [&](const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes) {
                    const auto states = static_cast<std::ptrdiff_t>(tensors.states.size());
                    UpdateTensors seen{.weights = writes[0],
                                       .gradients = reads.back(),
                                       .states = {writes.begin() + 1, writes.begin() + 1 + states},
                                       .rounded = {}};
                    if (tensors.rounded.defined()) seen.rounded = writes.back();
                    detail::update_segments(detail::rules_of(segments, step, gradient_scale), seen,
                                            detail::update_in_parallel);
                  });
}

void gather_gradients(std::span<const GradientPart> parts, const at::Tensor& to, Gather how,
                      c10::Stream) {
  std::vector<at::Tensor> read;
  for (const GradientPart& part : parts) read.push_back(part.values);
  if (how == Gather::Add) read.push_back(to);
  guarded::launch("the gradients of a unit", read, {to},
                  [&](const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes) {
                    std::vector<GradientPart> seen(parts.begin(), parts.end());
                    for (std::size_t i = 0; i < seen.size(); ++i) seen[i].values = reads[i];
                    detail::gather_gradients_on_host(seen, writes[0], how);
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
  void finish(Stream stream) override { runtime_->finish(stream); }
  std::unique_ptr<TraceMark> mark(Stream stream, std::string name) override {
    return runtime_->mark(stream, std::move(name));
  }
  void complete_trace() override { runtime_->complete_trace(); }
  void update(std::span<const UpdateSegment> segments, std::int64_t step, float gradient_scale,
              const UpdateTensors& tensors) override {
    runtime_->update(segments, step, gradient_scale, tensors);
  }
  void gather_gradients(std::span<const GradientPart> parts, const at::Tensor& to,
                        Gather how) override {
    runtime_->gather_gradients(parts, to, how);
  }
  void send(const at::Tensor& values, const at::Tensor& to) override { runtime_->send(values, to); }
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
  auto runtime = detail::make_device_runtime(guarded::device(options.device),
                                             {.trace = options.trace,
                                              .update = update,
                                              .gather_gradients = gather_gradients,
                                              .sum_squares = sum_squares});
  if (!options.deaf && !options.mute) return runtime;
  return std::make_unique<BrokenRuntime>(std::move(runtime), options.deaf, options.mute);
}

}  // namespace unishard::test
