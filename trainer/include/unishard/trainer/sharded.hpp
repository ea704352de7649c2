#pragma once
// Sharded<M> makes a module a unit, whose parameters are gathered, reduced, released and stored
// together. It derives from M, so the names of parameters do not change, and without an engine it
// behaves like M. M::forward takes and returns one tensor.
//
//   blocks.push_back(Sharded<BlockImpl>(config));
//   register_module("h0", blocks.back());
//
// At stage 3 the parameters of a unit are allocated only during its forward and backward; use a
// GatheredScope to access them elsewhere. A parameter of a unit must not be shared with other
// modules: tie only parameters outside units.
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <utility>

namespace unishard::trainer {

namespace detail {
class FlatUnit;
struct StepContext;
struct UnitAccess;
}  // namespace detail

/// The part of a unit that the engine uses.
class UnitBase {
 public:
  UnitBase(const UnitBase&) = delete;
  UnitBase& operator=(const UnitBase&) = delete;
  virtual ~UnitBase();

 protected:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  /// Seeds the default generator, before M's constructor, when a ConstructionScope exists.
  UnitBase();
  /// Shards `self`, after M's constructor, when a ConstructionScope exists.
  void finish_construction(torch::nn::Module& self);
  /// Gathers the parameters, runs `forward`, releases them, and makes backward gather them again.
  at::Tensor run(const at::Tensor& input, const Forward& forward);

 private:
  friend struct detail::UnitAccess;
  std::unique_ptr<detail::FlatUnit> flat_;
  /// The context of the engine that the unit is attached to, or null.
  detail::StepContext* context_ = nullptr;
  std::uint64_t index_ = 0;
};

template <class M>
class ShardedImpl : public UnitBase, public M {  // UnitBase first: it seeds before M draws
 public:
  template <class... Args>
  explicit ShardedImpl(Args&&... args) : M(std::forward<Args>(args)...) {
    finish_construction(*this);
  }
  at::Tensor forward(const at::Tensor& input) {
    return run(input, [this](const at::Tensor& x) { return M::forward(x); });
  }
};

template <class M>
class Sharded : public torch::nn::ModuleHolder<ShardedImpl<M>> {
 public:
  using torch::nn::ModuleHolder<ShardedImpl<M>>::ModuleHolder;
};

}  // namespace unishard::trainer
