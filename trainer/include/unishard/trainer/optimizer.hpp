#pragma once
// Optimizers as rules on spans of floats. The caller owns the states and knows them by name, so
// sharding, offload and checkpoints do not depend on the optimizer. Updates are elementwise and
// compiled without floating-point contraction, so results do not depend on where a shard begins.
// Thread safety: values and pure functions.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer {

/// Hyperparameters of one parameter group. Each rule reads those that it uses.
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
  bool decoupled_decay = true;  ///< true: AdamW; false: Adam with L2 decay
  bool operator==(const Hyper&) const = default;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::string_view name() const = 0;
  /// Returns torch's names of the states. Every state begins as zeros.
  virtual const std::vector<std::string>& state_names() const = 0;
  /// Performs one update with the gradient times `gradient_scale`. `step` counts from 1.
  /// Pre: all spans have weights.size() elements; `states` has state_names().size() spans.
  virtual void update(const Hyper& hyper, std::int64_t step, float gradient_scale,
                      std::span<float> weights, std::span<const float> gradients,
                      std::span<const std::span<float>> states) const = 0;
};

/// Returns the optimizer with this name in DeepSpeed's configuration, in any case: Adam, AdamW,
/// SGD, Lion, Adagrad. `hyper` decides which states exist (SGD without momentum has none).
/// Throws: InvalidArgument, listing the names.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Hyper& hyper);

/// Returns the names that make_optimizer() accepts.
std::span<const std::string_view> optimizer_names();

}  // namespace unishard::trainer
