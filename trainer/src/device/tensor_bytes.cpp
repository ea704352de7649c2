#include "device/tensor_bytes.hpp"

#include "unishard/format/error.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace unishard::trainer::detail {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 11> kTypes{{
    {DType::Float64, at::kDouble},
    {DType::Float32, at::kFloat},
    {DType::Float16, at::kHalf},
    {DType::BFloat16, at::kBFloat16},
    {DType::Int64, at::kLong},
    {DType::Int32, at::kInt},
    {DType::Int16, at::kShort},
    {DType::Int8, at::kChar},
    {DType::UInt8, at::kByte},
    {DType::Bool, at::kBool},
    {DType::Complex64, at::kComplexFloat},
}};

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  for (const auto& [ours, torchs] : kTypes) {
    if (ours == dtype) return torchs;
  }
  raise(ErrorCode::Unsupported, "LibTorch has no " + std::string(name_of(dtype)));
}

DType dtype_of(const at::Tensor& tensor) {
  for (const auto& [ours, torchs] : kTypes) {
    if (torchs == tensor.scalar_type()) return ours;
  }
  raise(ErrorCode::Unsupported,
        std::string("a checkpoint cannot hold ") + c10::toString(tensor.scalar_type()));
}

Shape shape_of(const at::Tensor& tensor) {
  Shape shape;
  for (const std::int64_t extent : tensor.sizes())
    shape.push_back(static_cast<std::uint64_t>(extent));
  return shape;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  if (!tensor.is_contiguous() || !tensor.device().is_cpu()) {
    raise(ErrorCode::Internal, "bytes_of: not contiguous host memory");
  }
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

std::span<float> floats_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kFloat) raise(ErrorCode::Internal, "floats_of: not float32");
  const auto bytes = bytes_of(tensor);
  return {tensor.data_ptr<float>(), bytes.size() / sizeof(float)};
}

void copy_to(std::span<std::byte> to, const at::Tensor& from) {
  const at::Tensor host = from.cpu();
  std::ranges::copy(bytes_of(host), to.begin());
}

}  // namespace unishard::trainer::detail
