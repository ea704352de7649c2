#include "state/shard_store.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace unishard::trainer::detail {

ShardStore::ShardStore(const UnitLayout& layout, const std::vector<at::Tensor>& initial,
                       const at::Tensor& flat, OffloadedParts& offloaded)
    : places_(layout.placement, offloaded.of_optimizer(layout.placement, layout.length()),
              offloaded.of_parameters(layout.placement, layout.length())),
      stored_(layout.stored_type()) {
  const at::NoGradGuard no_grad;
  const bool is_fp32 = stored_ == at::kFloat, is_stage3 = layout.placement.stage == 3;
  const bool updates_in_place = !places_.offloads_optimizer() || flat.is_cpu();
  aliased_ = is_fp32 && !is_stage3 && updates_in_place;
  if (aliased_) {
    master_ = StateArray(flat.narrow(0, layout.first(), layout.length()));
    return;
  }
  // At stage 3, fp32 parameters are the master where the host can update both.
  const bool is_both =
      is_fp32 && is_stage3 &&
      (flat.is_cpu() || places_.offloads_optimizer() == places_.offloads_parameters());
  master_ = is_both ? places_.make_for_parameters(layout.length(), at::kFloat)
                    : places_.make_for_optimizer(layout.length(), at::kFloat);
  if (is_stage3 && !is_both) weights_ = places_.make_for_parameters(layout.length(), stored_);
  for (std::size_t i = 0; i < initial.size(); ++i) {
    const ElementRange range = layout.held(i);
    if (range.empty()) continue;
    const auto begin = static_cast<std::int64_t>(range.begin);
    const at::Tensor values =
        initial[i].reshape({-1}).narrow(0, begin, static_cast<std::int64_t>(range.size()));
    const auto at = static_cast<std::int64_t>(layout.held_offset(i));
    master_.write(at, values.to(at::kFloat));
    if (weights_.defined()) weights_.write(at, values.to(stored_));
  }
}

void ShardStore::make_states(std::size_t count) {
  states_.clear();
  for (std::size_t i = 0; i < count; ++i)
    states_.push_back(places_.make_for_optimizer(master_.elements(), at::kFloat));
}

void ShardStore::follow(const at::Tensor& held) {
  if (aliased_) return;
  const at::NoGradGuard no_grad;
  visit_pieces([&](std::int64_t begin, std::int64_t count) {
    const at::Tensor master = master_.values(begin, count);
    const at::Tensor given = held.narrow(0, begin, count).to(master.device());
    const at::Tensor rounded = master.to(stored_).to(given.scalar_type());
    master_.write(begin, at::where(rounded == given, master, given.to(at::kFloat)));
    if (weights_.defined()) weights_.write(begin, given);
  });
}

bool ShardStore::is_in_files() const {
  const auto is_in_file = [](const StateArray& array) { return array.is_in_file(); };
  return is_in_file(master_) || is_in_file(weights_) || places_.has_optimizer_in_file();
}

}  // namespace unishard::trainer::detail
