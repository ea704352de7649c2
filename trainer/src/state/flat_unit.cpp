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
      no_gradients_(StateArray(at::empty({0}, at::device(placement.device).dtype(at::kFloat)))) {
  const std::int64_t trained_bytes = bytes_in(trained), frozen_bytes = bytes_in(frozen);
  meter_->add(trained_bytes + frozen_bytes);
  frozen_.emplace(std::move(frozen), placement, meter_);
  meter_->add(-frozen_bytes);
  std::vector<at::Tensor> initial;  // keeps the values: the parameters become views of other memory
  for (const at::Tensor& each : trained) initial.push_back(each.detach());
  gathered_.emplace(trained, layout_, meter_);
  if (is_trained()) store_.emplace(layout_, initial, gathered_->flat(), meter_->offloaded);
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
        name_, layout_, parameters(), link,
        GradientReducer::Options{.reduction = options.reduction,
                                 .places = store_->places(),
                                 .on_sums =
                                     [this](Sums what) {
                                       if (link_->on_sums) link_->on_sums(*this, what);
                                     }},
        [this] { reduce_if_complete(); });
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

void FlatUnit::start_gather() { gather_into(/*is_borrowing=*/can_borrow()); }

void FlatUnit::start_gather_copy() { gather_into(/*is_borrowing=*/false); }

/// Returns true when what this rank gathers from is all that the parameters would get.
bool FlatUnit::can_borrow() const {
  if (!is_trained() || persistent_ || placement().world_size > 1) return false;
  const StateArray& weights = store_->weights();
  return weights.defined() && !weights.is_in_file() &&
         weights.tensor().device() == placement().device && weights.type() == layout_.memory_type();
}

void FlatUnit::gather_into(bool is_borrowing) {
  if (has_parameters()) return;
  if (is_borrowing) {
    gathered_->borrow(store_->weights().tensor());
    if (frozen_->empty()) return;
  } else if (is_trained()) {
    gathered_->allocate();
  }
  frozen_->allocate();
  gather_on_stream("gather", Changed::Everything);
}

void FlatUnit::gather_on_stream(const char* verb, Changed changed) {
  const bool has_trained = is_trained() && !gathered_->is_borrowed();
  link_->communicate(std::string(verb) + " " + name_, [this, has_trained, changed] {
    const OperationScope scope(placement().stage == 3 ? "gathering" : "sharing the weights of",
                               name_);
    if (has_trained) gather_trained();
    if (changed == Changed::Everything) frozen_->gather(link_->collectives);
  });
  arrival_ = link_->runtime.record(Stream::Communication);
}

void FlatUnit::gather_trained() {
  const at::Tensor& flat = gathered_->flat();
  const bool can_read_in_place = placement().world_size == 1 && flat.is_cpu() &&
                                 is_gathered_from_file() && shard().type() == flat.scalar_type();
  if (can_read_in_place) return shard().read(0, flat);
  const bool is_widened = flat.scalar_type() != layout_.stored_type();
  const at::Tensor mine = shard_to_gather();
  const at::Tensor all = is_widened ? at::empty(flat.sizes(), mine.options()) : flat;
  link_->collectives.all_gather(all, mine);
  if (is_widened) flat.copy_(all);
}

/// Returns what this rank gives to the others, in the stored type and on the model's device.
at::Tensor FlatUnit::shard_to_gather() const {
  const StateArray mine = placement().stage == 3 ? shard() : resident_shard();
  return mine.on(placement().device).to(layout_.stored_type());
}

/// Returns the array that the parameters are gathered from at stage 3.
const StateArray& FlatUnit::shard() const {
  return store_->weights().defined() ? store_->weights() : master();
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
  if (placement().stage > 0) gather_on_stream("publish", changed);
}

void FlatUnit::finish_publish() { wait_for_arrival(); }

void FlatUnit::follow_parameters() {
  if (is_trained()) store_->follow(gathered_->flat().narrow(0, layout_.first(), layout_.length()));
  frozen_->follow();
}

UnitArrays FlatUnit::arrays() const {
  return {.gradients = gradients(),
          .master = master(),
          .states = states(),
          .rounded = store_->master_is_parameters() ? StateArray() : resident_shard(),
          .stored = layout_.stored_type()};
}

StateArray FlatUnit::resident_shard() const {
  if (placement().stage == 3) return store_->weights();
  return StateArray(gathered_->flat().narrow(0, layout_.first(), layout_.length()));
}

at::Tensor FlatUnit::gradient_squares() const {
  return reducer_ ? reducer_->squares() : no_gradients_.tensor().to(at::kDouble);
}

at::Tensor FlatUnit::gradients_on_device() const { return gradients().on(placement().device); }

void FlatUnit::replace_gradients(const at::Tensor& sums) { reducer_->replace(sums); }

at::Tensor FlatUnit::gather_values(const std::string& verb, const at::Tensor& mine) const {
  const at::Tensor own = mine.to(placement().device);
  if (placement().stage == 0) return own;
  const at::Tensor all = at::empty({layout_.padded}, own.options());
  link_->communicate(verb + " " + name_, [this, &verb, &all, &own] {
    const OperationScope scope(verb, name_);
    link_->collectives.all_gather(all, own);
  });
  link_->runtime.wait(Stream::Compute, link_->runtime.record(Stream::Communication));
  return all;
}

std::int64_t FlatUnit::master_bytes() const {
  if (!store_) return 0;
  return (store_->master_is_parameters() ? 0 : master().bytes_in_memory()) +
         store_->weights().bytes_in_memory();
}

std::int64_t FlatUnit::state_bytes() const {
  std::int64_t bytes = 0;
  if (store_)
    for (const StateArray& state : states()) bytes += state.bytes_in_memory();
  return bytes;
}

std::int64_t FlatUnit::gradient_bytes() const { return reducer_ ? reducer_->bytes() : 0; }

std::int64_t FlatUnit::bytes_in_files() const {
  std::int64_t bytes = gradients().bytes_in_file() + frozen_->bytes_in_files();
  if (!store_) return bytes;
  bytes += master().bytes_in_file() + store_->weights().bytes_in_file();
  for (const StateArray& state : states()) bytes += state.bytes_in_file();
  return bytes;
}

}  // namespace unishard::trainer::detail
