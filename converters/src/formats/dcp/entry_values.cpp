#include "formats/dcp/entry_values.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace unishard::converters::dcp {
namespace {

/// Tensors of two names are compared in pieces of this size.
constexpr std::uint64_t kCompareBytes = std::uint64_t{4} << 20;

}  // namespace

std::optional<double> scalar(const TensorEntry& tensor, const Items& items) {
  if (element_count(tensor.shape) != 1) return std::nullopt;
  std::vector<std::byte> bytes(size_of(tensor.dtype));
  read_elements(tensor, items, {0, 1}, bytes);
  if (info(tensor.dtype).kind == Kind::Float) return float_at(tensor.dtype, bytes.data());
  if (tensor.dtype == DType::Int64) {
    std::int64_t value = 0;
    std::memcpy(&value, bytes.data(), sizeof value);
    return static_cast<double>(value);
  }
  if (tensor.dtype == DType::Int32) {
    std::int32_t value = 0;
    std::memcpy(&value, bytes.data(), sizeof value);
    return static_cast<double>(value);
  }
  return std::nullopt;
}

bool equal_bytes(const TensorEntry& a, const TensorEntry& b, const Items& items) {
  const std::uint64_t width = size_of(a.dtype), total = element_count(a.shape);
  std::vector<std::byte> left, right;
  for (std::uint64_t at = 0, count = 0; at < total; at += count) {
    // Compares a few bytes first, because most tensors of the same shape differ at once.
    count = std::min(total - at, (at == 0 ? 4096 : kCompareBytes) / width);
    left.resize(count * width);
    right.resize(count * width);
    read_elements(a, items, {at, at + count}, left, torch::Reading::Sample);
    read_elements(b, items, {at, at + count}, right, torch::Reading::Sample);
    if (left != right) return false;
  }
  return true;
}

}  // namespace unishard::converters::dcp
