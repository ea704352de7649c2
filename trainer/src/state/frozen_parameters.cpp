#include "state/frozen_parameters.hpp"

#include "unishard/format/crc64.hpp"

#include "device/tensor_bytes.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace unishard::trainer::detail {
namespace {

/// Returns this rank's part of a flat tensor.
at::Tensor own_part(const at::Tensor& flat, const UnitLayout& layout) {
  return flat.narrow(0, layout.first(), layout.length());
}

}  // namespace

FrozenParameters::FrozenParameters(std::vector<at::Tensor> parameters, const Placement& placement,
                                   const std::shared_ptr<MemoryMeter>& meter)
    : parameters_(std::move(parameters)), places_(parameters_.size()) {
  std::vector<at::ScalarType> types;
  for (const at::Tensor& each : parameters_) {
    initial_crc64_.push_back(crc64(bytes_of(each.detach().cpu().contiguous())));
    if (std::ranges::find(types, each.scalar_type()) == types.end())
      types.push_back(each.scalar_type());
  }
  if (types.empty()) return;
  std::int64_t all = 0;
  for (const at::Tensor& each : parameters_) all += each.numel();
  const StatePlaces places(placement, Residence::Device,
                           meter->offloaded.of_parameters(placement, all / placement.world_size));
  for (const at::ScalarType type : types) add_type(type, placement, places, meter);
}

void FrozenParameters::add_type(at::ScalarType type, const Placement& placement,
                                const StatePlaces& places,
                                const std::shared_ptr<MemoryMeter>& meter) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> members;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].scalar_type() != type) continue;
    places_[i] = {types_.size(), members.size()};
    members.push_back(parameters_[i]);
  }
  const UnitLayout layout(members, placement, type);
  GatheredParameters gathered(std::move(members), layout, meter);
  const StateArray shard = places.make_for_parameters(layout.length(), type);
  shard.write(0, own_part(gathered.flat(), layout));
  gathered.free();
  types_.push_back({layout, std::move(gathered), shard});
}

std::int64_t FrozenParameters::elements() const {
  return std::accumulate(
      types_.begin(), types_.end(), std::int64_t{0},
      [](std::int64_t sum, const OfOneType& each) { return sum + each.layout.padded; });
}

std::int64_t FrozenParameters::shard_bytes() const {
  return std::accumulate(
      types_.begin(), types_.end(), std::int64_t{0},
      [](std::int64_t sum, const OfOneType& each) { return sum + each.shard.bytes_in_memory(); });
}

std::int64_t FrozenParameters::bytes_in_files() const {
  return std::accumulate(
      types_.begin(), types_.end(), std::int64_t{0},
      [](std::int64_t sum, const OfOneType& each) { return sum + each.shard.bytes_in_file(); });
}

bool FrozenParameters::has_memory() const {
  return std::ranges::all_of(types_, [](const auto& each) { return each.gathered.has_memory(); });
}

void FrozenParameters::allocate() {
  for (OfOneType& each : types_) each.gathered.allocate();
}

void FrozenParameters::free() {
  for (OfOneType& each : types_) each.gathered.free();
}

void FrozenParameters::gather(TensorCollectives& collectives) const {
  for (const OfOneType& each : types_) {
    const at::Tensor& flat = each.gathered.flat();
    collectives.all_gather(flat, each.shard.on(flat.device()));
  }
}

void FrozenParameters::follow() {
  const at::NoGradGuard no_grad;
  for (OfOneType& each : types_) each.shard.write(0, own_part(each.gathered.flat(), each.layout));
}

ElementRange FrozenParameters::held(std::size_t index) const {
  const auto [type, slot] = places_[index];
  return types_[type].layout.held(slot);
}

std::pair<StateArray, std::int64_t> FrozenParameters::place_of(std::size_t index) const {
  const auto [type, slot] = places_[index];
  const UnitLayout& layout = types_[type].layout;
  const bool is_held = !layout.held(slot).empty();
  return {types_[type].shard, is_held ? static_cast<std::int64_t>(layout.held_offset(slot)) : 0};
}

}  // namespace unishard::trainer::detail
