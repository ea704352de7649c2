#pragma once
// The parameters of a unit as views of one flat tensor. At stage 3 the flat tensor has memory only
// while it is needed: the pointer of its storage is swapped, so views, tensors saved for backward
// and AccumulateGrad nodes stay valid.
#include "state/memory_meter.hpp"
#include "state/unit_layout.hpp"

#include <memory>
#include <vector>

namespace unishard::trainer::detail {

/// Not thread-safe.
class GatheredParameters {
 public:
  /// Copies the values of the parameters, rounded to the placement's dtype, to a flat tensor on its
  /// device, and makes the parameters views of it.
  GatheredParameters(std::vector<at::Tensor> parameters, const UnitLayout& layout,
                     std::shared_ptr<MemoryMeter> meter);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// The flat tensor, with `padded` elements.
  const at::Tensor& flat() const { return flat_; }
  bool has_memory() const { return has_memory_; }

  /// The new memory has no values. No effect if there is memory.
  void allocate();
  void free();

 private:
  std::vector<at::Tensor> parameters_;
  at::Tensor flat_;
  std::shared_ptr<MemoryMeter> meter_;
  bool has_memory_ = true;
};

}  // namespace unishard::trainer::detail
