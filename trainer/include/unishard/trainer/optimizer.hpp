#pragma once
// Optimizers as rules on spans of float: the states are named and owned by the caller, so sharding,
// offload and checkpoints need not know them. Every update is elementwise and compiled without
// contraction, so results do not depend on where a shard begins. Pure; any thread.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer {

/// The numbers of one parameter group. Every rule reads those it knows.
struct Hyper {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  double dampening = 0;
  double lr_decay = 0;
  bool nesterov = false;
  bool decoupled_decay = true;  ///< AdamW; false: Adam with L2
  bool operator==(const Hyper&) const = default;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::string_view name() const = 0;
  /// Names of the states as torch calls them; every state starts as zeros.
  virtual const std::vector<std::string>& state_names() const = 0;
  /// One update with the gradient times `gradient_scale`. `step` counts from 1. Pre: all spans have
  /// weights.size() elements and states has state_names().size() spans.
  virtual void update(const Hyper& hyper, std::int64_t step, float gradient_scale,
                      std::span<float> weights, std::span<const float> gradients,
                      std::span<const std::span<float>> states) const = 0;
};

/// Names as in DeepSpeed's configuration: Adam, AdamW, SGD, Lion, Adagrad; any case. `hyper`
/// decides which states exist (SGD without momentum has none). Throws InvalidArgument listing the
/// names.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Hyper& hyper);

/// The names that make_optimizer() knows.
std::span<const std::string_view> optimizer_names();

}  // namespace unishard::trainer
