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
  /// Returns true between borrow() and free().
  bool is_borrowed() const { return is_borrowed_; }

  /// The new memory has no values. No effect if there is memory.
  void allocate();
  /// Makes the parameters views of `values` until free(). No effect if there is memory.
  /// Pre: `values` is contiguous and has the flat tensor's size, type and device.
  /// Lifetime: the memory of `values` must live until free().
  void borrow(const at::Tensor& values);
  void free();

 private:
  void set_memory(at::DataPtr memory, std::size_t bytes);

  std::vector<at::Tensor> parameters_;
  at::Tensor flat_;
  std::shared_ptr<MemoryMeter> meter_;
  bool has_memory_ = true;
  bool is_borrowed_ = false;
};

}  // namespace unishard::trainer::detail
