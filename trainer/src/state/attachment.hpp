#pragma once
// Which engine a model belongs to. A model has one engine at a time; when it is destroyed, the
// model keeps its values, and a new engine may take it over.
#include "state/model_state.hpp"

#include <torch/nn/module.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace unishard::trainer::detail {

/// Reserves the parameters of a model for one engine until it is destroyed. Thread-safe.
class ModelClaim {
 public:
  /// Throws: InvalidArgument, naming a parameter that another engine has.
  explicit ModelClaim(const torch::nn::Module& model);
  ~ModelClaim();
  ModelClaim(const ModelClaim&) = delete;
  ModelClaim& operator=(const ModelClaim&) = delete;

 private:
  std::vector<at::Tensor> parameters_;
};

/// Returns the root unit that the last engine of `model` left, or null. At stage 3 it holds this
/// rank's part of the values, which are nowhere else. Thread-safe.
std::unique_ptr<FlatUnit> take_left_root(const std::shared_ptr<torch::nn::Module>& model);

/// Connects the units of a model with an engine until it is destroyed; then it leaves the root unit
/// for take_left_root(). Not thread-safe.
class Attachment {
 public:
  /// Lifetime: all arguments but `module` must outlive this object.
  Attachment(std::weak_ptr<torch::nn::Module> module, ModelState& model, StepContext& context,
             Communicator& communicator, Reduction reduction, std::size_t optimizer_states);
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

 private:
  void detach() noexcept;

  std::weak_ptr<torch::nn::Module> module_;
  ModelState& model_;
};

}  // namespace unishard::trainer::detail
