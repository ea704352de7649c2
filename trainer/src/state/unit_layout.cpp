#include "state/unit_layout.hpp"

#include "device/tensor_bytes.hpp"

#include <torch/version.h>

namespace unishard::trainer::detail {
namespace {

constexpr bool kHasHalfKernels = TORCH_VERSION_MAJOR >= 2;

FlatLayout layout_of(const std::vector<at::Tensor>& parameters) {
  std::vector<std::uint64_t> elements;
  for (const at::Tensor& each : parameters)
    elements.push_back(static_cast<std::uint64_t>(each.numel()));
  return flat_layout(elements);
}

}  // namespace

at::ScalarType kernel_type(at::ScalarType stored, at::Device device) {
  return stored == at::kHalf && !kHasHalfKernels && !device.is_cuda() ? at::kFloat : stored;
}

UnitLayout::UnitLayout(const std::vector<at::Tensor>& parameters, const Placement& the_placement,
                       at::ScalarType type)
    : placement(the_placement),
      flat(layout_of(parameters)),
      shard(static_cast<std::int64_t>(flat.shard_length(placement.world_size))),
      padded(shard * placement.world_size),
      stored_(type),
      memory_(type) {}

UnitLayout::UnitLayout(const std::vector<at::Tensor>& parameters, const Placement& the_placement)
    : UnitLayout(parameters, the_placement, scalar_type(the_placement.compute)) {
  memory_ = kernel_type(stored_, placement.device);
}

ElementRange UnitLayout::held_by(std::uint32_t rank, std::size_t index) const {
  if (placement.stage == 0) return {0, flat.slots[index].elements};
  return flat.owned(index, rank, placement.world_size);
}

std::size_t UnitLayout::held_offset(std::size_t index) const {
  return flat.slots[index].offset + held(index).begin - static_cast<std::uint64_t>(first());
}

std::int64_t UnitLayout::first() const { return placement.stage == 0 ? 0 : shard * placement.rank; }

std::int64_t UnitLayout::length() const { return placement.stage == 0 ? padded : shard; }

at::Tensor UnitLayout::slot(const at::Tensor& whole, std::size_t index) const {
  return whole.narrow(0, static_cast<std::int64_t>(flat.slots[index].offset),
                      static_cast<std::int64_t>(flat.slots[index].elements));
}

}  // namespace unishard::trainer::detail
