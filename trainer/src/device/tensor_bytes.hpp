#pragma once
// Converts between at::Tensor and the spans and dtypes of unishard::format.
// Lifetime: a span is valid as long as the tensor's memory.
#include "unishard/format/dtype.hpp"
#include "unishard/format/tensor_info.hpp"

#include <ATen/core/Tensor.h>

#include <span>

namespace unishard::trainer::detail {

at::ScalarType scalar_type(DType dtype);
/// Throws: Unsupported for types that a checkpoint cannot hold (quantized).
DType dtype_of(const at::Tensor& tensor);
Shape shape_of(const at::Tensor& tensor);

/// Pre: `tensor` is contiguous and in host memory.
std::span<std::byte> bytes_of(const at::Tensor& tensor);
/// Pre: `tensor` is contiguous float32 in host memory.
std::span<float> floats_of(const at::Tensor& tensor);

/// Copies a contiguous tensor of any device to host memory.
/// Pre: the tensor has to.size() bytes.
void copy_to(std::span<std::byte> to, const at::Tensor& from);

}  // namespace unishard::trainer::detail
