#include "unishard/format/stats.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace unishard {
namespace {

constexpr std::size_t kLanes = 8;

// Fixed lanes, so that the compiler vectorises and the sum's order does not depend on how it did.
struct Lanes {
  std::array<double, kLanes> sum{};
  std::array<float, kLanes> min, max;
  std::array<std::uint32_t, kLanes> nan{}, inf{};

  Lanes() {
    min.fill(std::numeric_limits<float>::infinity());
    max.fill(-std::numeric_limits<float>::infinity());
  }

  void add(std::size_t lane, std::uint32_t bits) {
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const bool finite = magnitude < 0x7f800000u;
    const float value = std::bit_cast<float>(finite ? bits : 0u);
    nan[lane] += magnitude > 0x7f800000u;
    inf[lane] += magnitude == 0x7f800000u;
    const float low = finite ? value : std::numeric_limits<float>::infinity();
    const float high = finite ? value : -std::numeric_limits<float>::infinity();
    min[lane] = low < min[lane] ? low : min[lane];
    max[lane] = high > max[lane] ? high : max[lane];
    sum[lane] += static_cast<double>(value) * static_cast<double>(value);
  }

  Stats fold(std::uint64_t count) const {
    Stats stats;
    stats.count = count;
    float low = min[0], high = max[0];
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      stats.nan_count += nan[lane];
      stats.inf_count += inf[lane];
      stats.sum_squares += sum[lane];
      low = std::min(low, min[lane]);
      high = std::max(high, max[lane]);
    }
    if (stats.finite_count() > 0) {
      stats.min = static_cast<double>(low);
      stats.max = static_cast<double>(high);
    }
    return stats;
  }
};

// `Stored` is the integer type of one element; `widen` makes float32 bits of it.
template <class Stored, class Widen>
Stats measure_as_float32(std::span<const std::byte> bytes, Widen widen) {
  const std::size_t count = bytes.size() / sizeof(Stored);
  Lanes lanes;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    std::array<Stored, kLanes> block;
    std::memcpy(block.data(), bytes.data() + i * sizeof(Stored), sizeof(block));
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes.add(lane, widen(block[lane]));
  }
  for (; i < count; ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    lanes.add(i % kLanes, widen(value));
  }
  return lanes.fold(count);
}

Stats measure_one_by_one(DType dtype, std::span<const std::byte> bytes) {
  Stats stats;
  const std::size_t item = size_of(dtype);
  for (std::size_t at = 0; at + item <= bytes.size(); at += item) {
    const double value = float_at(dtype, bytes.data() + at);
    Stats one;
    one.count = 1;
    one.nan_count = std::isnan(value);
    one.inf_count = std::isinf(value);
    if (one.finite_count() == 1) one.min = one.max = value, one.sum_squares = value * value;
    stats.append(one);
  }
  return stats;
}

}  // namespace

void Stats::append(const Stats& next) {
  if (next.finite_count() > 0) {
    min = finite_count() > 0 ? std::min(min, next.min) : next.min;
    max = finite_count() > 0 ? std::max(max, next.max) : next.max;
  }
  count += next.count;
  nan_count += next.nan_count;
  inf_count += next.inf_count;
  sum_squares += next.sum_squares;
}

Stats measure(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::Float32:
      return measure_as_float32<std::uint32_t>(bytes, [](std::uint32_t bits) { return bits; });
    case DType::BFloat16:
      return measure_as_float32<std::uint16_t>(
          bytes, [](std::uint16_t bits) { return std::uint32_t{bits} << 16; });
    default:
      return info(dtype).kind == Kind::Float ? measure_one_by_one(dtype, bytes) : Stats{};
  }
}

}  // namespace unishard
