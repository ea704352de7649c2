#include "state/gradient_reducer.hpp"

#include "comm/operation_scope.hpp"
#include "device/device_copies.hpp"
#include "device/tensor_bytes.hpp"
#include "state/square_sums.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <exception>
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
      shard_(options.places.make_for_optimizer(layout.shard, at::kFloat)),
      is_alone_(layout.placement.world_size == 1 && !layout.placement.device.is_cpu() &&
                !shard_.is_in_file() && !(shard_.is_pinned() && reduction_ == Reduction::FoldOnce)),
      on_gradient_(std::move(on_gradient)),
      on_sums_(options.on_sums),
      self_(std::make_shared<GradientReducer*>(this)) {
  if (!is_alone_ && (layout.placement.stage == 0 || reduction_ == Reduction::FoldOnce))
    full_ = at::zeros({layout.padded}, at::device(layout.placement.device).dtype(at::kFloat));
  if (layout.placement.stage == 0) result_ = is_alone_ ? shard_ : StateArray(full_);
  for (const at::Tensor& each : parameters_) add_hook(each);
}

GradientReducer::~GradientReducer() {
  abandon();
  if (!copied_) return;
  try {
    link_.runtime.finish(Stream::Copy);  // it writes to memory that is now freed
  } catch (const std::exception&) {      // the device failed: nothing is copied any more
  }
}

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
  if (!is_away()) shard_.tensor().zero_();
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
  const at::Tensor sums = shard_.is_pinned() ? sums_on_device() : shard_.tensor();
  if (shard_.is_pinned()) on_sums_(Sums::Change);
  if (shard_.is_pinned() && has_sums_) bring(Stream::Compute, sums);
  link_.runtime.gather_gradients(take_parts(), sums, has_sums_ ? Gather::Add : Gather::Begin);
  has_sums_ = reduced_ = true;
  if (!shard_.is_pinned()) return;
  if (is_last_) squares_ = squares_of(sums);
  take_back(Stream::Compute, sums);
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
  const at::Tensor sums = shard_.is_pinned() ? sums_on_device() : at::Tensor();
  link_.communicate("reduce " + name_, [this, flat, sums, is_last = is_last_] {
    const OperationScope scope("reducing the gradients of", name_);
    add_to_sums(flat, sums, is_last);
  });
  if (shard_.is_pinned()) take_back(Stream::Communication, sums);
  if (layout_.placement.stage == 0 && is_last_) {
    link_.runtime.run(Stream::Communication, "share " + name_, [this] {
      const OperationScope scope("sharing the gradients of", name_);
      link_.collectives.all_gather(full_, shard_.tensor());
    });
  }
  link_.gradients.keep(flat);
}

/// Work of the communication stream. `on_device` is used where the sums are pinned.
void GradientReducer::add_to_sums(const at::Tensor& flat, const at::Tensor& on_device,
                                  bool is_last) {
  if (shard_.is_in_file()) return add_to_file(flat, is_last);
  if (!shard_.is_pinned()) return link_.collectives.reduce_scatter_fold(shard_.tensor(), flat);
  on_sums_(Sums::Change);
  if (has_sums_) {
    bring(Stream::Communication, on_device);
  } else {
    on_device.zero_();
  }
  link_.collectives.reduce_scatter_fold(on_device, flat);
  if (is_last) squares_ = squares_of(on_device);
  has_sums_ = true;
}

/// Work of the communication stream. Sums in a file are in memory for one unit at a time, so their
/// squares are taken on the way.
void GradientReducer::add_to_file(const at::Tensor& flat, bool is_last) {
  on_sums_(Sums::Change);
  const at::Device device = layout_.placement.device;
  const at::Tensor sums = has_sums_
                              ? shard_.on(device)
                              : at::zeros({layout_.shard}, at::device(device).dtype(at::kFloat));
  link_.collectives.reduce_scatter_fold(sums, flat);
  if (is_last) squares_ = squares_of(sums);
  shard_.write(0, sums);
  has_sums_ = true;
  if (is_last) on_sums_(Sums::Complete);
}

/// Returns memory for pinned sums while gradients are added to them.
at::Tensor GradientReducer::sums_on_device() const {
  return at::empty({layout_.shard}, at::device(layout_.placement.device).dtype(at::kFloat));
}

/// Gives `stream`, which is the current one, a copy of the pinned sums to `on_device`.
void GradientReducer::bring(Stream stream, const at::Tensor& on_device) const {
  link_.runtime.wait(stream, copied_);
  send_behind(on_device, bytes_of(shard_.tensor()));
}

/// Copies what `stream` leaves in `on_device` to the pinned sums, while the backward pass goes on.
void GradientReducer::take_back(Stream stream, const at::Tensor& on_device) {
  copy_back(stream, on_device);
  if (is_last_) on_sums_(Sums::Complete);
}

void GradientReducer::copy_back(Stream stream, const at::Tensor& on_device) {
  link_.runtime.wait(Stream::Copy, link_.runtime.record(stream));
  link_.runtime.run(Stream::Copy, "gradients of " + name_,
                    [&] { copy_behind(bytes_of(shard_.tensor()), on_device); });
  copied_ = link_.runtime.record(Stream::Copy);
  link_.gradients.keep(on_device, Stream::Copy);
}

at::Tensor GradientReducer::squares_of(const at::Tensor& sums) const {
  return square_sums(link_.runtime, layout_, sums.to(layout_.placement.device));
}

const StateArray& GradientReducer::gradients() const {
  return layout_.placement.stage == 0 ? result_ : shard_;
}

void GradientReducer::replace(const at::Tensor& sums) {
  if (!is_away()) return;  // they are the gradients themselves
  squares_ = squares_of(sums);
  if (shard_.is_in_file()) return shard_.write(0, sums);
  copy_back(Stream::Compute, sums);
  link_.runtime.finish(Stream::Copy);
}

at::Tensor GradientReducer::squares() const {
  if (is_away()) return squares_;
  return squares_of(gradients().tensor());
}

std::int64_t GradientReducer::bytes() const {
  return shard_.bytes_in_memory() + static_cast<std::int64_t>(full_.defined() ? full_.nbytes() : 0);
}

}  // namespace unishard::trainer::detail
