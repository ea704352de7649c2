#pragma once
#include "unishard/trainer/optimizer.hpp"

#include <ATen/core/Tensor.h>

namespace unishard::trainer::detail {

/// Returns Muon's update for a matrix, contiguous: nearly orthogonal, times the root of its rows
/// per column where that is above 1. Dimensions before the last two are a batch, except that a
/// tensor of four dimensions, a convolution's filters, is one matrix with a row for each filter.
/// The operations, their order and their types are those of DeepSpeed 0.19, which fails at four
/// dimensions. Pre: float32, two or more dimensions. Gradients are not recorded.
at::Tensor newton_schulz(const at::Tensor& matrix, NewtonSchulz method);

}  // namespace unishard::trainer::detail
