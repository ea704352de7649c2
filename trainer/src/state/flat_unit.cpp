#include "state/flat_unit.hpp"

#include "comm/operation_scope.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <exception>
#include <numeric>
#include <utility>

namespace unishard::trainer::detail {
namespace {

std::int64_t bytes_in(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

std::int64_t bytes_in(const std::vector<at::Tensor>& tensors) {
  return std::accumulate(
      tensors.begin(), tensors.end(), std::int64_t{0},
      [](std::int64_t sum, const at::Tensor& each) { return sum + bytes_in(each); });
}

}  // namespace

FlatUnit::FlatUnit(const std::vector<at::Tensor>& trained, std::vector<at::Tensor> frozen,
                   const Placement& placement, std::shared_ptr<MemoryMeter> meter)
    : layout_(trained, placement),
      meter_(std::move(meter)),
      no_gradients_(at::empty({0}, at::device(placement.device).dtype(at::kFloat))) {
  const std::int64_t trained_bytes = bytes_in(trained), frozen_bytes = bytes_in(frozen);
  meter_->add(trained_bytes + frozen_bytes);
  frozen_.emplace(std::move(frozen), placement, meter_);
  meter_->add(-frozen_bytes);
  std::vector<at::Tensor> initial;  // keeps the values: the parameters become views of other memory
  for (const at::Tensor& each : trained) initial.push_back(each.detach());
  gathered_.emplace(trained, layout_, meter_);
  if (is_trained()) store_.emplace(layout_, initial, gathered_->flat());
  meter_->add(-trained_bytes);
  release();
}

void FlatUnit::attach(const std::string& name, UnitLink link, const UnitOptions& options) {
  name_ = name.empty() ? "the root unit" : "unit " + name;
  link_.emplace(link);
  if (is_trained()) {
    if (placement().stage < 3) follow_parameters();
    store_->make_states(options.states);
    reducer_ = std::make_unique<GradientReducer>(
        name_, layout_, parameters(), link, options.reduction, [this] { reduce_if_complete(); });
  }
  persistent_ = options.persistent;
  if (persistent_) start_gather();
}

void FlatUnit::detach() {
  if (!link_) return;
  abandon();
  reducer_.reset();
  persistent_ = false;
  release();
  if (store_) store_->make_states(0);
  link_.reset();
}

void FlatUnit::start_gather() {
  if (has_parameters()) return;
  if (is_trained()) gathered_->allocate();
  frozen_->allocate();
  gather_on_stream("gather", Changed::Everything);
}

void FlatUnit::gather_on_stream(const char* verb, Changed changed) {
  link_->communicate(std::string(verb) + " " + name_, [this, changed] {
    const OperationScope scope(placement().stage == 3 ? "gathering" : "sharing the weights of",
                               name_);
    if (is_trained()) gather_trained();
    if (changed == Changed::Everything) frozen_->gather(link_->collectives);
  });
  arrival_ = link_->runtime.record(Stream::Communication);
}

void FlatUnit::gather_trained() {
  const at::Tensor& flat = gathered_->flat();
  const at::Tensor mine = rounded_master();
  const bool is_widened = flat.scalar_type() != mine.scalar_type();
  const at::Tensor all = is_widened ? at::empty(flat.sizes(), mine.options()) : flat;
  link_->collectives.all_gather(all, mine);
  if (is_widened) flat.copy_(all);
}

void FlatUnit::finish_gather() { wait_for_arrival(); }

void FlatUnit::wait_for_arrival() {
  if (arrival_) link_->runtime.wait(Stream::Compute, std::exchange(arrival_, nullptr));
}

void FlatUnit::release() {
  if (placement().stage < 3 || persistent_) return;
  wait_for_arrival();
  if (is_trained()) gathered_->free();
  frozen_->free();
}

void FlatUnit::end_use() {
  if (--uses_ > 0) return;
  release();
  reduce_if_complete();
}

void FlatUnit::end_recomputed() {
  --recomputed_;
  reduce_if_complete();
}

void FlatUnit::reduce_if_complete() {
  if (reducer_ && uses_ == 0 && recomputed_ == 0) reducer_->reduce_if_complete();
}

void FlatUnit::begin_step() {
  uses_ = recomputed_ = 0;
  if (reducer_) reducer_->begin_step();
}

void FlatUnit::begin_backward(bool counts, bool is_last) {
  if (reducer_) reducer_->begin_backward(counts, is_last);
}

void FlatUnit::finish_backward() {
  if (reducer_) reducer_->finish_backward();
  release();
  uses_ = recomputed_ = 0;
}

void FlatUnit::abandon() {
  if (!link_) return;
  link_->gradients.forget();
  try {
    wait_for_arrival();
  } catch (const std::exception&) {  // the next operation reports the failure
  }
  if (reducer_) reducer_->abandon();
  uses_ = recomputed_ = 0;
  release();
}

void FlatUnit::start_publish(Changed changed) {
  if (placement().stage == 3 && !persistent_) return;
  if (!is_trained() && (changed == Changed::Master || frozen_->empty())) return;
  if (placement().stage > 0) return gather_on_stream("publish", changed);
  const at::NoGradGuard no_grad;
  if (!store_->master_is_parameters()) gathered_->flat().copy_(rounded_master());
}

void FlatUnit::finish_publish() { wait_for_arrival(); }

void FlatUnit::follow_parameters() {
  if (is_trained()) store_->follow(gathered_->flat().narrow(0, layout_.first(), layout_.length()));
  frozen_->follow();
}

at::Tensor FlatUnit::rounded_master() const { return master().to(layout_.stored_type()); }

at::Tensor FlatUnit::resident_shard() const {
  if (placement().stage == 3) return {};
  return gathered_->flat().narrow(0, layout_.first(), layout_.length());
}

std::int64_t FlatUnit::master_bytes() const {
  return !store_ || store_->master_is_parameters() ? 0 : bytes_in(master());
}

std::int64_t FlatUnit::state_bytes() const { return store_ ? bytes_in(store_->states()) : 0; }

std::int64_t FlatUnit::gradient_bytes() const { return reducer_ ? reducer_->bytes() : 0; }

}  // namespace unishard::trainer::detail
