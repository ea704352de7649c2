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

struct AttachmentOptions {
  Reduction reduction = Reduction::FoldEach;
  std::size_t states = 0;  ///< of the optimizer
  /// Units with at most this many elements keep their parameters at stage 3.
  std::int64_t persistent = 0;
};

/// Connects the units of a model with an engine until it is destroyed; then it leaves the root unit
/// for take_left_root(). Not thread-safe.
class Attachment {
 public:
  /// Collective when units are persistent.
  /// Lifetime: `model`, `context` and what `link` refers to must outlive this object.
  Attachment(std::weak_ptr<torch::nn::Module> module, ModelState& model, StepContext& context,
             UnitLink link, const AttachmentOptions& options);
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

 private:
  void detach() noexcept;

  std::weak_ptr<torch::nn::Module> module_;
  ModelState& model_;
};

}  // namespace unishard::trainer::detail
