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
#include <utility>
#include <vector>

namespace unishard::trainer {

/// How Muon makes a matrix orthogonal: DeepSpeed's "ns_method".
enum class NewtonSchulz : std::uint8_t {
  Gram,      ///< iterates on the smaller square matrix, in float32 or, on CUDA devices, in float16
  Standard,  ///< iterates on the matrix, in bfloat16
};

std::string_view name_of(NewtonSchulz method);

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
  bool bias_correction = true;  ///< Adam and Lamb
  double max_coeff = 10;        ///< Lamb: bounds of the ratio of the norms
  double min_coeff = 0.01;
  bool use_muon = false;  ///< Muon: of matrices; Adam updates the parameters of other groups
  NewtonSchulz ns_method = NewtonSchulz::Gram;
  bool operator==(const Hyper&) const = default;
};

enum class OptimizerKind : std::uint8_t {
  Adam,
  Sgd,
  Lion,
  Adagrad,
  Lamb,      ///< the moments only: the step needs the norms of whole parameters
  LambStep,  ///< the step of one parameter, by a rate times the ratio of its norms
  Muon,      ///< the momentum only: the step needs whole matrices
  MuonStep,  ///< the step of a matrix, whose update is in the place of its gradient
};

class Optimizer {
 public:
  Optimizer(OptimizerKind kind, std::string_view name, std::vector<std::string> state_names)
      : kind_(kind), name_(name), state_names_(std::move(state_names)) {}
  OptimizerKind kind() const { return kind_; }
  std::string_view name() const { return name_; }
  /// Returns torch's names of the states. Every state begins as zeros.
  const std::vector<std::string>& state_names() const { return state_names_; }
  /// Performs one update with the gradient times `gradient_scale`, from the calling thread. `step`
  /// counts from 1.
  /// Pre: all spans have weights.size() elements and do not overlap; `states` has
  /// state_names().size() spans.
  void update(const Hyper& hyper, std::int64_t step, float gradient_scale, std::span<float> weights,
              std::span<const float> gradients, std::span<const std::span<float>> states) const;

 private:
  OptimizerKind kind_;
  std::string_view name_;
  std::vector<std::string> state_names_;
};

/// Returns the kind of the optimizer with this name in DeepSpeed's configuration, in any case:
/// Adam, AdamW, SGD, Lion, Adagrad, Lamb, Muon. Throws: InvalidArgument, listing the names.
OptimizerKind optimizer_kind(std::string_view name);
/// Returns DeepSpeed's name of the optimizer. Pre: `kind` is not the second part of one.
std::string_view optimizer_name(OptimizerKind kind, const Hyper& hyper);
/// Returns torch's names of its states; `hyper` decides which exist (SGD without momentum has
/// none).
std::vector<std::string> optimizer_state_names(OptimizerKind kind, const Hyper& hyper);

/// Returns the optimizer with this name; see optimizer_kind().
/// Throws: as optimizer_kind() does.
/// Lamb's update() changes its states and no weight: lamb_step() comes after it. Muon's update()
/// changes its state, and gives the weights the values that Newton-Schulz makes orthogonal:
/// muon_step() comes after that.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Hyper& hyper);

/// Returns the second part of Lamb, whose update() changes weights and no state. It ignores the
/// gradients. The caller multiplies the rate by lamb_ratio().
Optimizer lamb_step();
/// Returns the factor of the rate, from the norms of a parameter and of its update.
double lamb_ratio(const Hyper& hyper, double weight_norm, double update_norm);

/// Returns the second part of Muon, whose update() changes weights and no state. Its gradients are
/// the orthogonal updates.
Optimizer muon_step();

}  // namespace unishard::trainer
