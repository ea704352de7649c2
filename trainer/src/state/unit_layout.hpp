#pragma once
// How the parameters of one unit lie one after another in a flat tensor, and which part of it this
// rank holds: everything at stage 0, else its shard.
#include "unishard/format/partition.hpp"
#include "unishard/trainer/construction.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace unishard::trainer::detail {

/// Returns the type that kernels compute in for `stored`. Where LibTorch has no half kernels on the
/// CPU (before 2.0), fp16 values are kept as float32 there: they are rounded when parameters are
/// gathered, and gradients when they are taken.
at::ScalarType kernel_type(at::ScalarType stored, at::Device device);

struct UnitLayout {
  /// Lays out trained parameters, which have the placement's dtype.
  UnitLayout(const std::vector<at::Tensor>& parameters, const Placement& the_placement);
  /// Lays out parameters that have this type in memory and in communication.
  UnitLayout(const std::vector<at::Tensor>& parameters, const Placement& the_placement,
             at::ScalarType type);

  /// Returns the elements of parameter `index` that this rank holds.
  ElementRange held(std::size_t index) const { return held_by(placement.rank, index); }
  /// Returns the elements of parameter `index` that `rank` holds.
  ElementRange held_by(std::uint32_t rank, std::size_t index) const;
  /// Returns the position of the first of these elements in what this rank holds.
  std::size_t held_offset(std::size_t index) const;
  /// Returns the position in the flat tensor of the first element that this rank holds.
  std::int64_t first() const;
  /// Returns the number of elements that this rank holds, padding included.
  std::int64_t length() const;
  /// Returns the type of the parameters as they are communicated.
  at::ScalarType stored_type() const { return stored_; }
  /// Returns the type of the parameters in memory; see kernel_type().
  at::ScalarType memory_type() const { return memory_; }
  /// Returns the view of parameter `index` in a flat tensor of `padded` elements.
  at::Tensor slot(const at::Tensor& flat, std::size_t index) const;

  Placement placement;
  FlatLayout flat;
  std::int64_t shard = 0;   ///< elements of a shard
  std::int64_t padded = 0;  ///< shard * world size

 private:
  at::ScalarType stored_;
  at::ScalarType memory_;
};

}  // namespace unishard::trainer::detail
