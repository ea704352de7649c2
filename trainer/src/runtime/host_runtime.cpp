#include "unishard/trainer/runtime.hpp"
#include "unishard/trainer/trace.hpp"

#include "device/tensor_bytes.hpp"
#include "optimizer/parallel_update.hpp"
#include "runtime/device_arrays.hpp"
#include "runtime/host_gradients.hpp"
#include "runtime/host_square_sums.hpp"
#include "runtime/task_queue.hpp"

#include <ATen/core/grad_mode.h>

#include <array>
#include <string>
#include <utility>

namespace unishard::trainer {
namespace {

using detail::TaskQueue;

/// The first `count` tasks of a queue are done.
struct HostEvent final : Event {
  HostEvent(const TaskQueue& the_queue, std::uint64_t the_count)
      : queue(the_queue), count(the_count) {}
  const TaskQueue& queue;
  std::uint64_t count;
};

struct HostMark final : TraceMark {
  HostMark(Trace* trace, Stream stream, std::string name)
      : scope(trace, name_of(stream), std::move(name)) {}
  TraceScope scope;
};

class HostRuntime final : public Runtime {
 public:
  explicit HostRuntime(HostRuntimeOptions options) : options_(std::move(options)) {}

  at::Device device() const override { return at::kCPU; }

  void run(Stream stream, std::string_view name, std::function<void()> work) override {
    auto traced = [this, stream, name = std::string(name), work = std::move(work)] {
      const at::NoGradGuard no_grad;
      if (stream != Stream::Compute && options_.before_work) options_.before_work(name);
      const TraceScope scope(options_.trace, name_of(stream), name);
      work();
    };
    if (stream == Stream::Compute) {
      traced();
    } else {
      queue(stream).push(std::move(traced));
    }
  }

  EventPtr record(Stream stream) override {
    if (stream == Stream::Compute) return nullptr;
    const TaskQueue& tasks = queue(stream);
    return std::make_shared<HostEvent>(tasks, tasks.pushed());
  }

  void wait(Stream stream, const EventPtr& event) override {
    if (!event) return;
    const auto& moment = dynamic_cast<const HostEvent&>(*event);
    if (stream == Stream::Compute) {
      moment.queue.wait(moment.count);
    } else if (TaskQueue& own = queue(stream); &own != &moment.queue) {
      own.push([event] {
        const auto& other = dynamic_cast<const HostEvent&>(*event);
        other.queue.wait(other.count);
      });
    }
  }

  void finish(Stream stream) override { wait(Stream::Compute, record(stream)); }

  std::unique_ptr<TraceMark> mark(Stream stream, std::string name) override {
    if (!options_.trace) return nullptr;
    return std::make_unique<HostMark>(options_.trace, stream, std::move(name));
  }
  Trace* trace() const override { return options_.trace; }

  void update(std::span<const UpdateSegment> segments, std::int64_t step, float gradient_scale,
              const UpdateTensors& tensors) override {
    detail::update_segments(detail::rules_of(segments, step, gradient_scale), tensors,
                            detail::update_in_parallel);
  }

  void gather_gradients(std::span<const GradientPart> parts, const at::Tensor& to,
                        Gather how) override {
    detail::gather_gradients_on_host(parts, to, how);
  }

  void send(const at::Tensor& values, const at::Tensor& to) override {
    const at::NoGradGuard no_grad;
    to.copy_(values);
  }

  void sum_squares(const at::Tensor& gradients, std::span<const std::uint8_t> levels,
                   const at::Tensor& sums) override {
    detail::group_square_sums(detail::floats_of(gradients), levels,
                              {sums.data_ptr<double>(), levels.size()});
  }

 private:
  TaskQueue& queue(Stream stream) { return queues_[static_cast<std::size_t>(stream) - 1]; }

  HostRuntimeOptions options_;
  std::array<TaskQueue, kStreams - 1> queues_;
};

}  // namespace

std::unique_ptr<Runtime> make_host_runtime(HostRuntimeOptions options) {
  return std::make_unique<HostRuntime>(std::move(options));
}

}  // namespace unishard::trainer
