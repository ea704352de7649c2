#pragma once
// A Runtime is the device of an engine's memory, and the order of its work. Work that must be done
// in order is given to one stream. Streams work at the same time as each other, and events order
// them.
// Thread safety: a runtime belongs to one engine; one thread at a time calls its functions.
#include "unishard/trainer/gather.hpp"
#include "unishard/trainer/optimizer.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer {

class Trace;

enum class Stream : std::uint8_t {
  Compute,        ///< forward and backward passes, and updates
  Communication,  ///< collectives
  Copy,           ///< copies of the state for asynchronous saves
};
inline constexpr std::size_t kStreams = 3;
/// Returns the name in traces: "compute", "communication", "copy".
std::string_view name_of(Stream stream);

/// The moment at which a stream has done what it was given until record().
class Event {
 public:
  virtual ~Event() = default;
};
using EventPtr = std::shared_ptr<const Event>;

/// Ends a piece of work in the trace when it is destroyed.
class TraceMark {
 public:
  virtual ~TraceMark() = default;
};

/// The tensors of one update: float32, one-dimensional, equally long, on the runtime's device.
struct UpdateTensors {
  at::Tensor weights;
  at::Tensor gradients;
  std::vector<at::Tensor> states;
  /// Gets the rounding of the new weights: bfloat16 or float16; undefined where nothing does.
  at::Tensor rounded;
};

/// Elements of the tensors of an update, which have one rule.
struct UpdateSegment {
  std::int64_t begin = 0, count = 0;
  const Optimizer* optimizer = nullptr;
  Hyper hyper;
};

/// A gradient and the place of its first element in a flat tensor.
struct GradientPart {
  std::int64_t begin = 0;
  at::Tensor values;  ///< contiguous; float32, bfloat16 or float16
};

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual at::Device device() const = 0;

  /// Gives `work` to a stream. On the host, Compute is the caller, and each other stream is a
  /// thread. On a device, `work` is called at once and gives kernels and copies to the device's
  /// stream. `name` appears in the trace. Gradients are not recorded in `work`. Lifetime: what
  /// `work` uses must live until an event recorded after it has been waited for.
  virtual void run(Stream stream, std::string_view name, std::function<void()> work) = 0;
  /// Returns null when the stream has nothing to do.
  virtual EventPtr record(Stream stream) = 0;
  /// Makes `stream` wait for the event; null is a moment in the past. Only on the host, and only
  /// for Compute, the caller waits too. Throws: what work that precedes the event has thrown. A
  /// stream that failed does nothing more.
  virtual void wait(Stream stream, const EventPtr& event) = 0;

  /// Blocks the caller, which may be any thread, until `stream` has done what it was given. No
  /// effect on the host's Compute, which is the caller. Throws: as wait() does.
  virtual void finish(Stream stream) = 0;

  /// Marks what `stream` is given until the result is destroyed as one piece of work in the trace;
  /// null without a trace.
  virtual std::unique_ptr<TraceMark> mark(Stream stream, std::string name) = 0;

  /// Returns what records the streams' work, for work on other threads of the host; null without.
  virtual Trace* trace() const { return nullptr; }

  /// Waits for the device, and adds to the trace all that its streams have done.
  virtual void complete_trace() {}

  /// Performs Optimizer::update() of each segment on the Compute stream. On a device it is one
  /// kernel for most units. Elements of no segment stay as they are.
  /// Pre: the segments do not overlap.
  virtual void update(std::span<const UpdateSegment> segments, std::int64_t step,
                      float gradient_scale, const UpdateTensors& tensors) = 0;

  /// Gives the parts to their places in `to`. All are on the runtime's device, on whose current
  /// stream it works: by one kernel for most units.
  /// Pre: the parts are in order, do not overlap, lie within `to`, and have one type.
  virtual void gather_gradients(std::span<const GradientPart> parts, const at::Tensor& to,
                                Gather how) = 0;

  /// Gives `to`, on the runtime's device, the values of a tensor in the host's memory, rounded to
  /// its type, behind the work of the Compute stream. `values` may be changed at once; where the
  /// device is not the host, the caller goes on while the values are copied.
  virtual void send(const at::Tensor& values, const at::Tensor& to) = 0;

  /// Writes group_square_sums() of `gradients` to `sums`, float64. Both are on the runtime's
  /// device, on whose current stream it works.
  virtual void sum_squares(const at::Tensor& gradients, std::span<const std::uint8_t> levels,
                           const at::Tensor& sums) = 0;
};

/// What a runtime on the host may be told.
struct HostRuntimeOptions {
  /// Records what each stream does; null: nothing.
  Trace* trace = nullptr;
  /// Called on a stream's thread before each piece of its work, with its name; tests use it to be
  /// late.
  std::function<void(std::string_view)> before_work{};
};

/// Returns a runtime whose memory is the host's.
/// Lifetime: `options.trace` must outlive it.
std::unique_ptr<Runtime> make_host_runtime(HostRuntimeOptions options = {});

/// What a runtime on a CUDA device may be told.
struct CudaRuntimeOptions {
  std::uint32_t device = 0;  ///< its number on this machine
  /// Records what each stream does; null: nothing.
  Trace* trace = nullptr;
};

/// Returns how many CUDA devices this machine, this LibTorch and this build can train on. It needs
/// a recent LibTorch for CUDA, and a build with the CUDA compiler.
std::uint32_t cuda_devices();
/// Returns the device of the process with this local rank: several share one where there are fewer
/// devices than processes. Returns 0 without any device.
std::uint32_t cuda_device_of(std::uint32_t local_rank);
/// Returns a runtime whose memory is a CUDA device's. Compute is its default stream, on which the
/// models must run.
/// Lifetime: `options.trace` must outlive it.
/// Throws: Unsupported when there is no such device.
std::unique_ptr<Runtime> make_cuda_runtime(CudaRuntimeOptions options = {});

}  // namespace unishard::trainer
