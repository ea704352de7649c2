#pragma once
// Sharded<M> makes a module a unit: what is gathered, reduced, released and stored together. It is
// an M, so names of parameters do not change, and without an engine it behaves like an M.
// M::forward takes and returns one tensor.
//
//   blocks.push_back(Sharded<BlockImpl>(config));
//   register_module("h0", blocks.back());
//
// At stage 3 a unit's parameters have memory only inside its forward and backward: touching them
// elsewhere needs a GatheredScope. A parameter of a unit must not be shared with other modules; tie
// parameters outside of units.
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

/// What the engine knows of a unit.
class UnitBase {
 public:
  UnitBase(const UnitBase&) = delete;
  UnitBase& operator=(const UnitBase&) = delete;
  virtual ~UnitBase();

 protected:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  /// Before M's constructor: seeds the default generator when a ConstructionScope is alive.
  UnitBase();
  /// After M's constructor: shards `self` when a ConstructionScope is alive.
  void finish_construction(torch::nn::Module& self);
  /// Gathers, runs `forward`, releases, and sees to it that backward gathers again.
  at::Tensor run(const at::Tensor& input, const Forward& forward);

 private:
  friend struct detail::UnitAccess;
  std::unique_ptr<detail::FlatUnit> flat_;
  const detail::StepContext* context_ = nullptr;  ///< the engine's, while one is attached
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
