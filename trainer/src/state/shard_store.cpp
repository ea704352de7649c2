#include "state/shard_store.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace unishard::trainer::detail {

ShardStore::ShardStore(const UnitLayout& layout, const std::vector<at::Tensor>& initial,
                       const at::Tensor& flat)
    : stored_(layout.stored_type()), aliased_(stored_ == at::kFloat && layout.placement.stage < 3) {
  const at::NoGradGuard no_grad;
  if (aliased_) {
    master_ = flat.narrow(0, layout.first(), layout.length());
    return;
  }
  master_ = at::zeros({layout.length()}, flat.options().dtype(at::kFloat));
  for (std::size_t i = 0; i < initial.size(); ++i) {
    const ElementRange range = layout.held(i);
    if (range.empty()) continue;
    const auto count = static_cast<std::int64_t>(range.size());
    const auto begin = static_cast<std::int64_t>(range.begin);
    master_.narrow(0, static_cast<std::int64_t>(layout.held_offset(i)), count)
        .copy_(initial[i].reshape({-1}).narrow(0, begin, count));
  }
}

void ShardStore::make_states(std::size_t count) {
  states_.clear();
  for (std::size_t i = 0; i < count; ++i) states_.push_back(at::zeros_like(master_));
}

void ShardStore::follow(const at::Tensor& held) {
  if (aliased_) return;
  const at::NoGradGuard no_grad;
  const at::Tensor rounded = master_.to(stored_).to(held.scalar_type());
  master_.copy_(at::where(rounded == held, master_, held.to(at::kFloat)));
}

}  // namespace unishard::trainer::detail
