#include "unishard/trainer/recompute.hpp"

#include "unishard/format/error.hpp"

#include "state/random_state.hpp"
#include "state/recomputed_units.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace unishard::trainer {
namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

}  // namespace

/// Where inputs wait for the backward pass.
struct Recompute::Keeper {
  explicit Keeper(RecomputeOptions the_options) : options(the_options) {}

  at::Tensor keep(const at::Tensor& input) {
    at::Tensor kept = input.detach();
    if (options.cpu_checkpointing) kept = kept.cpu();
    if (options.contiguous_memory_optimization) kept = place(kept);
    ++waiting;
    stats.kept_bytes += static_cast<std::int64_t>(kept.nbytes());
    stats.kept_bytes_peak = std::max(stats.kept_bytes_peak, stats.kept_bytes);
    return kept;
  }

  void drop(const at::Tensor& kept) {
    stats.kept_bytes -= static_cast<std::int64_t>(kept.nbytes());
    if (--waiting == 0) used = 0;
  }

  /// Copies to the next part of the memory, which the first input sizes.
  at::Tensor place(const at::Tensor& input) {
    if (used == 0 && (!memory.defined() || memory.options().dtype() != input.dtype() ||
                      memory.numel() < input.numel() * options.number_checkpoints)) {
      memory = at::empty({input.numel() * options.number_checkpoints}, input.options());
    }
    if (used + input.numel() > memory.numel() || memory.dtype() != input.dtype()) {
      raise(ErrorCode::InvalidArgument,
            "activation_checkpointing: the inputs do not fit into contiguous memory for " +
                std::to_string(options.number_checkpoints) + " of the first one's size",
            "set number_checkpoints to the number of recomputed parts of the model");
    }
    at::Tensor part = memory.narrow(0, used, input.numel()).view(input.sizes());
    used += input.numel();
    return part.copy_(input);
  }

  RecomputeOptions options;
  RecomputeStats stats;
  at::Tensor memory;
  std::int64_t used = 0;     ///< elements of `memory`
  std::int64_t waiting = 0;  ///< inputs
};

namespace {

/// One call: what its backward pass needs.
struct Call {
  std::function<variable_list(const variable_list&)> function;
  std::function<at::Tensor(const at::Tensor&)> keep;
  std::function<void(const at::Tensor&)> drop;
  std::function<void(Seconds)> spent;
  std::optional<detail::RandomState> random;
  std::vector<detail::FlatUnit*> units;  ///< that `function` uses, once for each use
  variable_list kept;
  std::vector<at::Device> devices;
  std::vector<bool> differentiable;
};

/// The inputs as leaves of a graph of their own, where they were.
variable_list leaves_of(const Call& call) {
  variable_list inputs;
  for (std::size_t i = 0; i < call.kept.size(); ++i) {
    at::Tensor leaf =
        call.kept[i].defined() ? call.kept[i].to(call.devices[i]).detach() : at::Tensor();
    if (leaf.defined()) leaf.requires_grad_(call.differentiable[i]);
    inputs.push_back(std::move(leaf));
  }
  return inputs;
}

class RecomputeNode : public torch::autograd::Function<RecomputeNode> {
 public:
  static variable_list forward(AutogradContext* context, const std::shared_ptr<Call>& call,
                               at::TensorList inputs) {
    context->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(call));
    call->random = detail::RandomState::capture(inputs.back().device());
    variable_list own(inputs.begin(), inputs.end() - 1);  // the last one only asks for a gradient
    for (const at::Tensor& each : own) {
      call->differentiable.push_back(each.defined() && each.requires_grad());
      call->devices.push_back(each.defined() ? each.device() : at::Device(at::kCPU));
      call->kept.push_back(each.defined() ? call->keep(each) : at::Tensor());
    }
    const detail::RecomputedScope scope(call->units);
    return call->function(own);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto call = static_cast<Holder&>(*context->saved_data["call"].toCapsule()).call;
    if (call->kept.size() != call->devices.size()) {
      raise(ErrorCode::InvalidArgument, "a recomputed part has had its backward pass already");
    }
    const variable_list inputs = leaves_of(*call);
    for (const at::Tensor& each : call->kept) {
      if (each.defined()) call->drop(each);
    }
    call->kept.clear();
    variable_list outputs, output_gradients;
    {
      const at::AutoGradMode with_gradients(true);
      const detail::RandomStateScope random(*call->random);
      const auto begin = Clock::now();
      const variable_list all = call->function(inputs);
      call->spent(Clock::now() - begin);
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (!all[i].defined() || !all[i].requires_grad() || !gradients[i].defined()) continue;
        outputs.push_back(all[i]);
        output_gradients.push_back(gradients[i]);
      }
      if (!outputs.empty()) torch::autograd::backward(outputs, output_gradients);
    }
    detail::end_recomputed(call->units);
    variable_list result{at::Tensor()};  // of the call
    for (const at::Tensor& each : inputs) result.push_back(each.defined() ? each.grad() : each);
    result.emplace_back();
    return result;
  }

 private:
  struct Holder : torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<Call> the_call) : call(std::move(the_call)) {}
    std::shared_ptr<Call> call;
  };
};

}  // namespace

Recompute::Recompute(RecomputeOptions options) : keeper_(std::make_shared<Keeper>(options)) {
  if (options.contiguous_memory_optimization && options.number_checkpoints < 1) {
    raise(ErrorCode::InvalidArgument,
          "activation_checkpointing: contiguous_memory_optimization needs number_checkpoints",
          "set number_checkpoints to the number of recomputed parts of the model");
  }
}

Recompute::~Recompute() = default;

std::vector<at::Tensor> Recompute::operator()(Function function,
                                              const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  const auto keeper = keeper_;
  ++keeper->stats.calls;
  const auto call = std::make_shared<Call>();
  call->function = std::move(function);
  call->keep = [keeper](const at::Tensor& each) { return keeper->keep(each); };
  call->drop = [keeper](const at::Tensor& each) { keeper->drop(each); };
  call->spent = [keeper](Seconds time) {
    if (keeper->options.profile) keeper->stats.recompute_seconds += time.count();
  };
  const at::Device device = inputs.empty() ? at::Device(at::kCPU) : inputs.front().device();
  // Parameters may need a gradient where no input does.
  variable_list all = inputs;
  all.push_back(at::empty({0}, at::TensorOptions(device)).requires_grad_(true));
  const auto begin = Clock::now();
  variable_list outputs = RecomputeNode::apply(call, at::TensorList(all));
  if (keeper->options.profile)
    keeper->stats.forward_seconds += Seconds(Clock::now() - begin).count();
  return outputs;
}

at::Tensor Recompute::operator()(std::function<at::Tensor(const at::Tensor&)> function,
                                 const at::Tensor& input) {
  return (*this)(
      [function = std::move(function)](const std::vector<at::Tensor>& inputs) {
        return std::vector<at::Tensor>{function(inputs[0])};
      },
      std::vector<at::Tensor>{input})[0];
}

RecomputeStats Recompute::stats() const { return keeper_->stats; }

}  // namespace unishard::trainer
