#pragma once
// Finds out whether the 16-bit weights of a unit are the rounding of its fp32 master, which is what
// an update leaves. User code can write to weights below stage 3 without a trace, so they are
// compared, in the memory where they are.
#include "state/flat_unit.hpp"

#include <cstdint>

namespace unishard::trainer::detail {

/// Returns a tensor of one bool on the weights' device: whether any of `count` elements from
/// `first` on of what this rank holds of `unit` is not LibTorch's rounding of its master. Does not
/// wait for the device. At stage 3 none is: the weights are rounded from the master, by the engine
/// only. Pre: the weights have 16 bits.
at::Tensor any_is_not_rounded(const FlatUnit& unit, std::int64_t first, std::int64_t count);

}  // namespace unishard::trainer::detail
