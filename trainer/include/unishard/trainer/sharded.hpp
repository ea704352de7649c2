#pragma once
// Sharded<M> makes a module a unit, whose parameters are gathered, reduced, released and stored
// together. It derives from M, so the names of parameters do not change, and without an engine it
// behaves like M.
//
//   blocks.push_back(Sharded<BlockImpl>(config));
//   register_module("h0", blocks.back());
//
// M::forward takes and returns any number of tensors, optional tensors, tuples and vectors of them,
// and plain values. Default arguments of M::forward are not taken over: pass all arguments.
//
// At stage 3 the parameters of a unit are allocated only during its forward and backward; use a
// GatheredScope to access them elsewhere. A parameter of a unit must not be shared with other
// modules: tie only parameters outside units. Parameters that require no gradient when M's
// constructor returns are frozen, and sharded like the others; below stage 3 they are ordinary
// tensors. A micro-batch may use a unit several times; each use has dropout masks of its own.
#include "unishard/trainer/tensor_visit.hpp"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace unishard::trainer {

class TraceMark;

namespace detail {
class FlatUnit;
class DropoutScope;
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
  /// Seeds the default generator, before M's constructor, when a ConstructionScope exists.
  UnitBase();
  /// Shards `self`, after M's constructor, when a ConstructionScope exists.
  void finish_construction(torch::nn::Module& self);

  /// One forward pass of the unit: the parameters are gathered as long as it lives.
  class ForwardScope {
   public:
    /// Throws: InvalidArgument when the unit is sharded at stage 3 and has no engine.
    explicit ForwardScope(UnitBase& unit);
    ~ForwardScope();
    ForwardScope(const ForwardScope&) = delete;
    ForwardScope& operator=(const ForwardScope&) = delete;

    /// Takes the tensors among the arguments before M's forward. Each with a gradient is replaced
    /// by an alias, whose gradient is that of this unit alone, and is complete before others begin.
    void watch_inputs(const std::vector<at::Tensor*>& inputs);
    /// Makes the backward pass gather the parameters again, and release them at its end.
    void watch_outputs(const std::vector<at::Tensor*>& outputs);

   private:
    UnitBase& unit_;
    std::unique_ptr<detail::DropoutScope> dropout_;
    std::unique_ptr<TraceMark> mark_;
    std::vector<at::Tensor> inputs_;  ///< with a gradient
  };

 private:
  friend struct detail::UnitAccess;
  std::unique_ptr<detail::FlatUnit> flat_;
  /// The context of the engine that the unit is attached to, or null.
  detail::StepContext* context_ = nullptr;
  std::uint64_t index_ = 0;
};

namespace detail {

/// The part of ShardedImpl<M> that does not depend on the arguments of M::forward.
template <class M>
class ShardedModule : public UnitBase, public M {  // UnitBase first: it seeds before M draws
 public:
  template <class... Args>
  explicit ShardedModule(Args&&... args) : M(std::forward<Args>(args)...) {
    finish_construction(*this);
  }

 protected:
  template <class... Args>
  auto run_forward(Args&&... args) {
    ForwardScope scope(*this);
    // Tensors are copied, because the scope may replace them; other arguments are passed on as they
    // are.
    std::tuple<CopyOfTensors<Args&&>...> inputs(std::forward<Args>(args)...);
    scope.watch_inputs(tensors_in(inputs));
    auto output = std::apply(
        [this](auto&... each) { return M::forward(std::forward<Args>(each)...); }, inputs);
    scope.watch_outputs(tensors_in(output));
    return output;
  }
};

/// Returns the type of M::forward; void when it is a template or overloaded.
template <class M>
auto forward_signature(int) -> decltype(&M::forward);
template <class M>
void forward_signature(long);

}  // namespace detail

template <class M, class Signature = decltype(detail::forward_signature<M>(0))>
class ShardedImpl : public detail::ShardedModule<M> {
 public:
  using detail::ShardedModule<M>::ShardedModule;
  template <class... Args>
  auto forward(Args&&... args) {
    return this->run_forward(std::forward<Args>(args)...);
  }
};

template <class M, class C, class Result, class... Args>
class ShardedImpl<M, Result (C::*)(Args...)> : public detail::ShardedModule<M> {
 public:
  using detail::ShardedModule<M>::ShardedModule;
  Result forward(Args... args) { return this->run_forward(std::forward<Args>(args)...); }
};

template <class M, class C, class Result, class... Args>
class ShardedImpl<M, Result (C::*)(Args...) const> : public detail::ShardedModule<M> {
 public:
  using detail::ShardedModule<M>::ShardedModule;
  Result forward(Args... args) { return this->run_forward(std::forward<Args>(args)...); }
};

template <class M>
class Sharded : public torch::nn::ModuleHolder<ShardedImpl<M>> {
 public:
  using torch::nn::ModuleHolder<ShardedImpl<M>>::ModuleHolder;
};

}  // namespace unishard::trainer
