#include "state/gradient_reducer.hpp"

#include "comm/operation_scope.hpp"
#include "state/square_sums.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <utility>

namespace unishard::trainer::detail {
namespace {

bool has_gradient(const at::Tensor& parameter) { return parameter.grad().defined(); }

}  // namespace

GradientReducer::GradientReducer(std::string name, const UnitLayout& layout,
                                 const std::vector<at::Tensor>& parameters, UnitLink link,
                                 const Options& options, std::function<void()> on_gradient)
    : name_(std::move(name)),
      layout_(layout),
      parameters_(parameters),
      link_(link),
      reduction_(options.reduction),
      is_alone_(layout.placement.world_size == 1 && !layout.placement.device.is_cpu() &&
                !(options.places && options.places->has_optimizer_in_file())),
      on_gradient_(std::move(on_gradient)),
      on_sums_(options.on_sums),
      self_(std::make_shared<GradientReducer*>(this)) {
  const auto in_memory = at::device(layout.placement.device).dtype(at::kFloat);
  const bool in_file = options.places && options.places->has_optimizer_in_file();
  shard_ = in_file ? options.places->make_for_optimizer(layout.shard, at::kFloat)
                   : StateArray(at::zeros({layout.shard}, in_memory));
  if (!is_alone_ && (layout.placement.stage == 0 || reduction_ == Reduction::FoldOnce))
    full_ = at::zeros({layout.padded}, in_memory);
  if (layout.placement.stage == 0) result_ = is_alone_ ? shard_ : StateArray(full_);
  for (const at::Tensor& each : parameters_) add_hook(each);
}

GradientReducer::~GradientReducer() { abandon(); }

void GradientReducer::add_hook(const at::Tensor& parameter) {
  using torch::autograd::variable_list;
  AccumulateNode node = torch::autograd::impl::grad_accumulator(parameter);
  node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [self = std::weak_ptr(self_)](const variable_list& outputs, const variable_list&) {
        if (const auto reducer = self.lock()) (*reducer)->on_gradient_();
        return outputs;
      }));
  nodes_.push_back(std::move(node));
}

void GradientReducer::begin_step() {
  abandon();
  has_sums_ = false;
  if (is_alone_) return;  // the first gradients replace the sums
  if (!shard_.is_in_file()) shard_.tensor().zero_();
  if (reduction_ == Reduction::FoldOnce) full_.zero_();
}

void GradientReducer::begin_backward(bool counts, bool is_last) {
  counts_ = counts;
  is_last_ = is_last;
}

void GradientReducer::reduce_if_complete() {
  if (!reduced_ && std::ranges::all_of(parameters_, has_gradient)) reduce();
}

void GradientReducer::finish_backward() {
  if (!reduced_ || std::ranges::any_of(parameters_, has_gradient)) reduce();
  reduced_ = false;
}

void GradientReducer::abandon() {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  reduced_ = false;
}

void GradientReducer::reduce() {
  const at::NoGradGuard no_grad;
  if (is_alone_) return sum_alone();
  const at::Tensor flat = take();
  const bool sums_are_folded = is_last_ && reduced_;
  if (reduction_ == Reduction::FoldEach || sums_are_folded) {
    fold(flat);
  } else {
    full_.add_(flat);
    if (is_last_) fold(full_);
  }
  reduced_ = true;
}

/// Adds up what is to be summed, without a collective and on the stream of the backward pass. The
/// sums have the bits of the collective's, whose accumulator begins with zeros.
void GradientReducer::sum_alone() {
  const auto mark = link_.runtime.mark(Stream::Compute, "reduce " + name_);
  link_.runtime.gather_gradients(take_parts(), shard_.tensor(),
                                 has_sums_ ? Gather::Add : Gather::Begin);
  has_sums_ = reduced_ = true;
}

/// Takes the gradients that count from the parameters, rounded to the stored type.
std::vector<GradientPart> GradientReducer::take_parts() {
  std::vector<GradientPart> parts;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (counts_ && gradient.defined())
      parts.push_back({.begin = static_cast<std::int64_t>(layout_.flat.slots[i].offset),
                       .values = gradient.detach().to(layout_.stored_type()).reshape({-1})});
    gradient.reset();
  }
  return parts;
}

at::Tensor GradientReducer::take() {
  const at::Tensor flat = at::empty(
      {layout_.padded}, at::device(layout_.placement.device).dtype(layout_.stored_type()));
  link_.runtime.gather_gradients(take_parts(), flat, Gather::Copy);
  return flat;
}

/// Adds the gradients over the ranks. At stage 0, the last micro-batch's call shares the sums.
void GradientReducer::fold(const at::Tensor& flat) {
  link_.communicate("reduce " + name_, [this, flat, is_last = is_last_] {
    const OperationScope scope("reducing the gradients of", name_);
    add_to_sums(flat, is_last);
  });
  if (layout_.placement.stage == 0 && is_last_) {
    link_.runtime.run(Stream::Communication, "share " + name_, [this] {
      const OperationScope scope("sharing the gradients of", name_);
      link_.collectives.all_gather(full_, shard_.tensor());
    });
  }
  link_.gradients.keep(flat);
}

/// Work of the communication stream. Sums in a file are in memory for one unit at a time, so their
/// squares are taken on the way.
void GradientReducer::add_to_sums(const at::Tensor& flat, bool is_last) {
  if (!shard_.is_in_file()) return link_.collectives.reduce_scatter_fold(shard_.tensor(), flat);
  on_sums_(Sums::Change);
  const auto on_host = at::device(at::kCPU).dtype(at::kFloat);
  at::Tensor sums = has_sums_ ? shard_.values() : at::zeros({layout_.shard}, on_host);
  sums = sums.to(layout_.placement.device);
  link_.collectives.reduce_scatter_fold(sums, flat);
  if (is_last) squares_ = square_sums(link_.runtime, layout_, sums);
  shard_.write(0, sums);
  has_sums_ = true;
  if (is_last) on_sums_(Sums::Complete);
}

const StateArray& GradientReducer::gradients() const {
  return layout_.placement.stage == 0 ? result_ : shard_;
}

void GradientReducer::replace(const at::Tensor& sums) {
  if (!shard_.is_in_file()) return;  // values() is a view
  shard_.write(0, sums);
  squares_ = square_sums(link_.runtime, layout_, sums.to(layout_.placement.device));
}

at::Tensor GradientReducer::squares() const {
  return shard_.is_in_file() ? squares_ : square_sums(link_.runtime, layout_, gradients().tensor());
}

std::int64_t GradientReducer::bytes() const {
  return shard_.bytes_in_memory() + static_cast<std::int64_t>(full_.defined() ? full_.nbytes() : 0);
}

}  // namespace unishard::trainer::detail
