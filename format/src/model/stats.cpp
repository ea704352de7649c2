#include "unishard/format/stats.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace unishard {
namespace {

constexpr std::size_t kLanes = 8;

// Fixed lanes as vectors (of GCC and clang), so that the sum's order does not depend on the
// machine.
using Doubles [[gnu::vector_size(kLanes / 2 * 8)]] = double;  // half of the lanes
using Floats [[gnu::vector_size(kLanes * 4)]] = float;
using Ints [[gnu::vector_size(kLanes * 4)]] = std::int32_t;
using Shorts [[gnu::vector_size(kLanes * 2)]] = std::int16_t;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Lanes {
  Doubles sum_low{}, sum_high{};
  Floats min = Floats{} + kInfinity, max = Floats{} - kInfinity;
  Ints nan{}, inf{};

  [[gnu::always_inline]] void add(const Ints& bits) {
    constexpr std::int32_t kInfinityBits = 0x7f800000;
    const Ints magnitude = bits & 0x7fffffff;
    const Ints finite = magnitude < kInfinityBits;  // -1 or 0 in each lane
    const Floats value = __builtin_bit_cast(Floats, bits & finite);
    nan -= magnitude > kInfinityBits;
    inf -= magnitude == kInfinityBits;
    const Floats low = finite ? value : Floats{} + kInfinity;
    const Floats high = finite ? value : Floats{} - kInfinity;
    min = low < min ? low : min;
    max = high > max ? high : max;
    const Doubles first =
        __builtin_convertvector(__builtin_shufflevector(value, value, 0, 1, 2, 3), Doubles);
    const Doubles last =
        __builtin_convertvector(__builtin_shufflevector(value, value, 4, 5, 6, 7), Doubles);
    sum_low += first * first;
    sum_high += last * last;
  }

  Stats fold(std::uint64_t count) const {
    Stats stats;
    stats.count = count;
    float low = kInfinity, high = -kInfinity;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      stats.nan_count += static_cast<std::uint64_t>(std::int64_t{nan[lane]});
      stats.inf_count += static_cast<std::uint64_t>(std::int64_t{inf[lane]});
      stats.sum_squares += lane < kLanes / 2 ? sum_low[lane] : sum_high[lane - kLanes / 2];
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

// The bits of float32 elements.
struct Float32Bits {
  using Block = Ints;
  static constexpr std::int32_t kNan = 0x7fc00000;
  [[gnu::always_inline]] static void widen(const Block& block, Ints& bits) { bits = block; }
};

struct BFloat16Bits {
  using Block = Shorts;
  static constexpr std::int16_t kNan = 0x7fc0;
  [[gnu::always_inline]] static void widen(const Block& block, Ints& bits) {
    bits = __builtin_convertvector(block, Ints) << 16;
  }
};

template <class Type>
[[gnu::always_inline]] inline Stats measure_as_float32(std::span<const std::byte> bytes) {
  constexpr std::size_t kItem = sizeof(Type::kNan), kBlock = kLanes * kItem;
  const std::size_t count = bytes.size() / kItem, rest = count % kLanes * kItem;
  Lanes lanes;
  typename Type::Block block;
  Ints bits;
  const std::byte* const end = bytes.data() + count * kItem - rest;
  for (const std::byte* at = bytes.data(); at != end; at += kBlock) {
    std::memcpy(&block, at, kBlock);
    Type::widen(block, bits);
    lanes.add(bits);
  }
  if (rest > 0) {  // filled up with NaN, which changes nothing but their count
    block = typename Type::Block{} + Type::kNan;
    std::memcpy(&block, end, rest);
    Type::widen(block, bits);
    lanes.add(bits);
    lanes.nan[0] -= static_cast<std::int32_t>(kLanes - rest / kItem);
  }
  return lanes.fold(count);
}

Stats measure_float32(std::span<const std::byte> bytes) {
  return measure_as_float32<Float32Bits>(bytes);
}
Stats measure_bfloat16(std::span<const std::byte> bytes) {
  return measure_as_float32<BFloat16Bits>(bytes);
}

#ifdef __x86_64__
// The same code in wider instructions; the same bits, because the squares of floats are exact in
// double and the lanes are added in the same order.
[[gnu::target("avx2")]] Stats measure_float32_avx2(std::span<const std::byte> bytes) {
  return measure_as_float32<Float32Bits>(bytes);
}
[[gnu::target("avx2")]] Stats measure_bfloat16_avx2(std::span<const std::byte> bytes) {
  return measure_as_float32<BFloat16Bits>(bytes);
}
#endif

using Measure = Stats (*)(std::span<const std::byte>);

Measure pick(DType dtype) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2"))
    return dtype == DType::Float32 ? measure_float32_avx2 : measure_bfloat16_avx2;
#endif
  return dtype == DType::Float32 ? measure_float32 : measure_bfloat16;
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
  if (dtype == DType::Float32 || dtype == DType::BFloat16) return pick(dtype)(bytes);
  return info(dtype).kind == Kind::Float ? measure_one_by_one(dtype, bytes) : Stats{};
}

}  // namespace unishard
