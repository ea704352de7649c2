#pragma once
// at::Tensor to the spans and dtypes of unishard::format. The memory stays the tensor's.
#include "unishard/format/dtype.hpp"
#include "unishard/format/tensor_info.hpp"

#include <ATen/core/Tensor.h>

#include <span>

namespace unishard::trainer::detail {

at::ScalarType scalar_type(DType dtype);
/// Throws Unsupported for types that a checkpoint cannot hold (quantized).
DType dtype_of(const at::Tensor& tensor);
Shape shape_of(const at::Tensor& tensor);

/// Pre: contiguous, in host memory.
std::span<std::byte> bytes_of(const at::Tensor& tensor);
/// Pre: contiguous float32 in host memory.
std::span<float> floats_of(const at::Tensor& tensor);

/// Copies a contiguous tensor of any device, of as many bytes.
void copy_to(std::span<std::byte> to, const at::Tensor& from);

}  // namespace unishard::trainer::detail
