#include "state/flat_unit.hpp"

#include "unishard/format/error.hpp"

#include "comm/operation_scope.hpp"
#include "device/tensor_bytes.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <numeric>
#include <utility>

namespace unishard::trainer::detail {
namespace {

FlatLayout layout_of(const std::vector<at::Tensor>& parameters) {
  std::vector<std::uint64_t> elements;
  for (const at::Tensor& each : parameters)
    elements.push_back(static_cast<std::uint64_t>(each.numel()));
  return flat_layout(elements);
}

std::int64_t signed_size(std::uint64_t value) { return static_cast<std::int64_t>(value); }
std::int64_t bytes_in(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

}  // namespace

FlatUnit::FlatUnit(std::vector<at::Tensor> parameters, const Placement& placement,
                   std::shared_ptr<MemoryMeter> meter)
    : placement_(placement),
      parameters_(std::move(parameters)),
      layout_(layout_of(parameters_)),
      shard_(signed_size(layout_.shard_length(placement.world_size))),
      padded_(shard_ * placement.world_size),
      meter_(std::move(meter)) {
  if (empty()) return;
  const at::NoGradGuard no_grad;
  std::int64_t initial_bytes = 0;
  for (const at::Tensor& each : parameters_) initial_bytes += bytes_in(each);
  meter_->add(initial_bytes);
  copy_initial_values();
  meter_->add(-initial_bytes);
  if (placement_.stage == 3) release();
}

void FlatUnit::copy_initial_values() {
  full_ = at::zeros({padded_}, scalar_type(placement_.compute));
  meter_->add(bytes_in(full_));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const FlatSlot& slot = layout_.slots[i];
    full_.narrow(0, signed_size(slot.offset), signed_size(slot.elements))
        .copy_(parameters_[i].reshape({-1}));
  }
  const std::int64_t begin = placement_.stage == 0 ? 0 : shard_ * placement_.rank;
  const std::int64_t length = placement_.stage == 0 ? padded_ : shard_;
  aliased_ = placement_.compute == DType::Float32 && placement_.stage < 3;
  if (aliased_) {
    master_ = full_.narrow(0, begin, length);
  } else {
    master_ = at::zeros({length}, at::kFloat);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const ElementRange range = held(i);
      if (range.empty()) continue;
      const std::int64_t count = signed_size(range.size());
      master_.narrow(0, signed_size(held_offset(i)), count)
          .copy_(parameters_[i].reshape({-1}).narrow(0, signed_size(range.begin), count));
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const FlatSlot& slot = layout_.slots[i];
    at::Tensor& parameter = parameters_[i];
    parameter.set_data(full_.narrow(0, signed_size(slot.offset), signed_size(slot.elements))
                           .view(parameter.sizes()));
  }
}

ElementRange FlatUnit::held(std::size_t index) const {
  if (placement_.stage == 0) return {0, layout_.slots[index].elements};
  return layout_.owned(index, placement_.rank, placement_.world_size);
}

std::size_t FlatUnit::held_offset(std::size_t index) const {
  const std::uint64_t first =
      placement_.stage == 0 ? 0 : static_cast<std::uint64_t>(shard_) * placement_.rank;
  return layout_.slots[index].offset + held(index).begin - first;
}

void FlatUnit::attach(std::string name, Communicator& communicator, Reduction reduction,
                      std::size_t states) {
  name_ = name.empty() ? "the root unit" : "unit " + name;
  communicator_ = &communicator;
  reduction_ = reduction;
  self_ = std::make_shared<FlatUnit*>(this);
  if (empty()) return;
  const at::NoGradGuard no_grad;
  follow_parameters();
  shard_gradient_ = at::zeros({shard_}, at::kFloat);
  if (placement_.stage == 0 || reduction == Reduction::FoldOnce) {
    full_gradient_ = at::zeros({padded_}, at::kFloat);
  }
  for (std::size_t i = 0; i < states; ++i)
    states_.push_back(at::zeros({master_.numel()}, at::kFloat));
  for (const at::Tensor& each : parameters_) add_hook(each);
}

void FlatUnit::detach() {
  self_.reset();
  nodes_.clear();
  abandon();
  states_.clear();
  shard_gradient_.reset();
  full_gradient_.reset();
  communicator_ = nullptr;
}

/// Where a 16-bit parameter is still the rounding of its master, the master keeps its bits.
void FlatUnit::follow_parameters() {
  if (aliased_ || placement_.stage == 3) return;
  const at::Tensor mine = resident_shard();
  master_.copy_(at::where(rounded_master() == mine, master_, mine.to(at::kFloat)));
}

void FlatUnit::add_hook(const at::Tensor& parameter) {
  using torch::autograd::variable_list;
  AccumulateNode node = torch::autograd::impl::grad_accumulator(parameter);
  node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [self = std::weak_ptr(self_)](const variable_list& outputs, const variable_list&) {
        if (const auto unit = self.lock()) (*unit)->on_gradient();
        return outputs;
      }));
  nodes_.push_back(std::move(node));
}

void FlatUnit::allocate_full() {
  auto* storage = full_.storage().unsafeGetStorageImpl();
  const std::size_t bytes = static_cast<std::size_t>(padded_) * full_.itemsize();
  storage->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(bytes));
  storage->set_nbytes(bytes);
  meter_->add(static_cast<std::int64_t>(bytes));
}

void FlatUnit::free_full() {
  auto* storage = full_.storage().unsafeGetStorageImpl();
  meter_->add(-static_cast<std::int64_t>(storage->nbytes()));
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, c10::Device(c10::kCPU)));
  storage->set_nbytes(0);
}

void FlatUnit::gather() {
  if (gathered_ || empty()) return;
  const at::NoGradGuard no_grad;
  allocate_full();
  gathered_ = true;
  const at::Tensor mine = master_.to(full_.scalar_type());
  const OperationScope scope("gathering", name_);
  communicator_->all_gather(bytes_of(full_), bytes_of(mine))->wait();
}

void FlatUnit::release() {
  if (!gathered_ || placement_.stage < 3 || empty()) return;
  free_full();
  gathered_ = false;
}

void FlatUnit::end_use() {
  if (--uses_ == 0) release();
}

void FlatUnit::abandon() {
  if (empty()) return;
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  gradients_seen_ = 0;
  uses_ = 0;
  reduced_ = false;
  release();
}

void FlatUnit::begin_step() {
  if (empty()) return;
  shard_gradient_.zero_();
  if (reduction_ == Reduction::FoldOnce) full_gradient_.zero_();
}

void FlatUnit::on_gradient() {
  if (++gradients_seen_ == parameters_.size()) reduce();
}

void FlatUnit::reduce() {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = take_gradients();
  release();
  if (reduction_ == Reduction::FoldEach) {
    fold(flat);
  } else {
    full_gradient_.add_(flat);
  }
  reduced_ = true;
}

at::Tensor FlatUnit::take_gradients() {
  at::Tensor flat = at::empty({padded_}, full_.scalar_type());
  std::int64_t end = 0;  // what lies before is written; gaps between slots are zeros
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::int64_t begin = signed_size(layout_.slots[i].offset);
    const std::int64_t count = signed_size(layout_.slots[i].elements);
    flat.narrow(0, end, begin - end).zero_();
    end = begin + count;
    at::Tensor& gradient = parameters_[i].mutable_grad();
    const at::Tensor slot = flat.narrow(0, begin, count);
    if (counts_ && gradient.defined()) {
      slot.copy_(gradient.reshape({-1}));
    } else {
      slot.zero_();
    }
    gradient.reset();
  }
  flat.narrow(0, end, padded_ - end).zero_();
  return flat;
}

void FlatUnit::fold(const at::Tensor& flat) {
  const OperationScope scope("reducing the gradients of", name_);
  communicator_->reduce_scatter_fold(floats_of(shard_gradient_), dtype_of(flat), bytes_of(flat))
      ->wait();
}

void FlatUnit::finish_backward() {
  if (empty()) return;
  if (!reduced_) reduce();
  release();
  reduced_ = false;
  gradients_seen_ = 0;
  uses_ = 0;
}

void FlatUnit::finish_step() {
  if (empty()) return;
  if (reduction_ == Reduction::FoldOnce) fold(full_gradient_);
  if (placement_.stage == 0) {
    const OperationScope scope("sharing the gradients of", name_);
    communicator_->all_gather(bytes_of(full_gradient_), bytes_of(shard_gradient_))->wait();
  }
}

std::span<const float> FlatUnit::gradients() const {
  return floats_of(placement_.stage == 0 ? full_gradient_ : shard_gradient_);
}

std::span<float> FlatUnit::master() const { return floats_of(master_); }
std::span<float> FlatUnit::state(std::size_t index) const { return floats_of(states_[index]); }

void FlatUnit::publish() {
  if (empty() || placement_.stage == 3) return;
  const at::NoGradGuard no_grad;
  if (placement_.stage == 0) {
    if (!aliased_) full_.copy_(master_);
    return;
  }
  const at::Tensor mine = master_.to(full_.scalar_type());
  const OperationScope scope("sharing the weights of", name_);
  communicator_->all_gather(bytes_of(full_), bytes_of(mine))->wait();
}

at::Tensor FlatUnit::rounded_master() const { return master_.to(full_.scalar_type()); }

at::Tensor FlatUnit::resident_shard() const {
  if (placement_.stage == 3) return {};
  return placement_.stage == 0 ? full_ : full_.narrow(0, shard_ * placement_.rank, shard_);
}

std::int64_t FlatUnit::master_bytes() const { return aliased_ ? 0 : bytes_in(master_); }

std::int64_t FlatUnit::state_bytes() const {
  return std::accumulate(
      states_.begin(), states_.end(), std::int64_t{0},
      [](std::int64_t sum, const at::Tensor& each) { return sum + bytes_in(each); });
}

std::int64_t FlatUnit::gradient_bytes() const {
  return bytes_in(shard_gradient_) + bytes_in(full_gradient_);
}

}  // namespace unishard::trainer::detail
