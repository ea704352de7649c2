#pragma once
// What the units of a model work with while an engine has the model.
#include "unishard/trainer/runtime.hpp"

#include "comm/tensor_collectives.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::trainer::detail {

/// Memory that another stream than Compute reads. Its limit bounds what waits for it. Not
/// thread-safe.
class InFlight {
 public:
  /// `limit` counts elements.
  InFlight(Runtime& runtime, std::int64_t limit) : runtime_(runtime), limit_(limit) {}

  /// Keeps `tensor`, which Compute has made, until `reader` has done what it was given. Compute
  /// waits for older tensors while all together have more elements than the limit.
  void keep(at::Tensor tensor, Stream reader = Stream::Communication) {
    elements_ += tensor.numel();
    bytes_ += static_cast<std::int64_t>(tensor.nbytes());
    peak_bytes_ = std::max(peak_bytes_, bytes_);
    kept_.emplace_back(runtime_.record(reader), std::move(tensor));
    while (elements_ > limit_) drop_first();
  }
  std::int64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = bytes_; }
  /// Makes Compute wait for all of them.
  void drain() {
    while (!kept_.empty()) drop_first();
  }
  /// Does the same; errors are those of operations that nobody needs any more.
  void forget() noexcept {
    while (!kept_.empty()) {
      try {
        drop_first();
      } catch (const std::exception&) {  // the next operation reports the failure
      }
    }
  }

 private:
  void drop_first() {
    const auto [event, tensor] = std::move(kept_.front());
    kept_.pop_front();
    elements_ -= tensor.numel();
    bytes_ -= static_cast<std::int64_t>(tensor.nbytes());
    runtime_.wait(Stream::Compute, event);
  }

  Runtime& runtime_;
  std::int64_t limit_;
  std::int64_t elements_ = 0, bytes_ = 0, peak_bytes_ = 0;
  std::deque<std::pair<EventPtr, at::Tensor>> kept_;
};

/// Names of the collectives that the communication stream was given, in their order. The
/// collectives themselves have no names: ranks with another order mix up the values of units.
using CollectiveOrder = std::vector<std::string>;

class FlatUnit;

/// What happens to sums of gradients that are in a file or in pinned memory.
enum class Sums {
  Change,    ///< they are about to be written
  Complete,  ///< they are those of the whole step, once stream Copy has done what it was given
};

/// Lifetime: what it refers to outlives the units' attachment.
struct UnitLink {
  /// Gives the communication stream a collective, for when Compute has done what it was given.
  void communicate(const std::string& name, std::function<void()> collective) const {
    order.push_back(name);
    runtime.wait(Stream::Communication, runtime.record(Stream::Compute));
    runtime.run(Stream::Communication, name, std::move(collective));
  }

  Runtime& runtime;
  TensorCollectives& collectives;
  InFlight& gradients;
  CollectiveOrder& order;  ///< since the step or the evaluation began
  /// Called by the thread that gives the work, or by the communication stream; may be empty.
  std::function<void(const FlatUnit&, Sums)> on_sums = {};
};

}  // namespace unishard::trainer::detail
