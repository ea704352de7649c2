#include "workflows/compare.hpp"

#include "unishard/converters/dtype_cast.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace unishard::tools {
namespace {

constexpr std::size_t kBlock = 512;

double distance(double a, double b) {
  if (std::isnan(a) && std::isnan(b)) return 0;
  if (a == b) return 0;  // infinities too
  const double apart = std::abs(a - b);
  return std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
}

/// Integers beyond 2^53 are no doubles, but their distance is.
template <class Integer>
double integer_distance(const std::byte* a, const std::byte* b) {
  Integer x = 0, y = 0;
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, b, sizeof y);
  const auto least = static_cast<std::uint64_t>(std::min(x, y));
  return static_cast<double>(static_cast<std::uint64_t>(std::max(x, y)) - least);
}

/// Complex numbers are compared as pairs.
DType component(DType dtype) {
  if (dtype == DType::Complex64) return DType::Float32;
  return dtype == DType::Complex128 ? DType::Float64 : dtype;
}

}  // namespace

void ElementDiff::append(const ElementDiff& next) {
  const bool is_larger =
      next.differing > 0 && (differing == 0 || next.max_abs > max_abs ||
                             (next.max_abs == max_abs && next.max_index < max_index));
  if (is_larger) {
    max_abs = next.max_abs;
    max_index = next.max_index;
    a = next.a;
    b = next.b;
  }
  elements += next.elements;
  differing += next.differing;
  beyond += next.beyond;
}

ElementDiff compare_elements(DType dtype, std::span<const std::byte> a,
                             std::span<const std::byte> b, std::uint64_t first_index,
                             const std::optional<double>& tolerance) {
  const std::size_t item_bytes = size_of(dtype);
  const DType part = component(dtype);
  const std::size_t parts = item_bytes / size_of(part);
  ElementDiff diff;
  diff.elements = a.size() / item_bytes;
  std::array<double, 2 * kBlock> a_values;
  std::array<double, 2 * kBlock> b_values;
  for (std::size_t begin = 0; begin < diff.elements; begin += kBlock) {
    const std::size_t count = std::min<std::size_t>(kBlock, diff.elements - begin);
    const auto a_bytes = a.subspan(begin * item_bytes, count * item_bytes);
    const auto b_bytes = b.subspan(begin * item_bytes, count * item_bytes);
    if (std::memcmp(a_bytes.data(), b_bytes.data(), a_bytes.size()) == 0) continue;
    const auto wide = [&](std::span<const std::byte> bytes,
                          std::array<double, 2 * kBlock>& values) {
      const auto out = std::as_writable_bytes(std::span(values).first(count * parts));
      converters::convert_elements(part, bytes, DType::Float64, out);
    };
    wide(a_bytes, a_values);
    wide(b_bytes, b_values);
    for (std::size_t i = 0; i < count; ++i) {
      if (std::memcmp(&a_bytes[i * item_bytes], &b_bytes[i * item_bytes], item_bytes) == 0)
        continue;
      std::size_t at = i * parts;
      if (parts == 2 &&
          distance(a_values[at + 1], b_values[at + 1]) > distance(a_values[at], b_values[at]))
        ++at;
      double apart = distance(a_values[at], b_values[at]);
      if (dtype == DType::Int64)
        apart = integer_distance<std::int64_t>(&a_bytes[i * item_bytes], &b_bytes[i * item_bytes]);
      if (dtype == DType::UInt64)
        apart = integer_distance<std::uint64_t>(&a_bytes[i * item_bytes], &b_bytes[i * item_bytes]);
      ElementDiff one{.elements = 0,
                      .differing = 1,
                      .beyond = 0,
                      .max_abs = apart,
                      .max_index = first_index + begin + i,
                      .a = a_values[at],
                      .b = b_values[at]};
      one.beyond = !tolerance || one.max_abs > *tolerance ? 1 : 0;
      diff.append(one);
    }
  }
  return diff;
}

ElementDiff compare_widened(DType a_type, std::span<const std::byte> a, DType b_type,
                            std::span<const std::byte> b, std::uint64_t first_index,
                            const std::optional<double>& tolerance) {
  ElementDiff diff;
  diff.elements = a.size() / size_of(a_type);
  std::array<double, kBlock> a_values;
  std::array<double, kBlock> b_values;
  for (std::size_t begin = 0; begin < diff.elements; begin += kBlock) {
    const std::size_t count = std::min<std::size_t>(kBlock, diff.elements - begin);
    const auto widen = [&](DType type, std::span<const std::byte> bytes,
                           std::array<double, kBlock>& values) {
      converters::convert_elements(
          type, bytes.subspan(begin * size_of(type), count * size_of(type)), DType::Float64,
          std::as_writable_bytes(std::span(values).first(count)));
    };
    widen(a_type, a, a_values);
    widen(b_type, b, b_values);
    for (std::size_t i = 0; i < count; ++i) {
      const double apart = distance(a_values[i], b_values[i]);
      if (apart == 0) continue;
      diff.append({.elements = 0,
                   .differing = 1,
                   .beyond = !tolerance || apart > *tolerance ? 1u : 0u,
                   .max_abs = apart,
                   .max_index = first_index + begin + i,
                   .a = a_values[i],
                   .b = b_values[i]});
    }
  }
  return diff;
}

}  // namespace unishard::tools
