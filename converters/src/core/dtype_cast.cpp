#include "unishard/converters/dtype_cast.hpp"

#include "unishard/format/error.hpp"

#include "core/bits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace unishard::converters {
namespace {

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
void store(std::byte* bytes, T value) {
  std::memcpy(bytes, &value, sizeof value);
}

/// Elements per block: the intermediate values of a block stay in the first-level cache.
constexpr std::size_t kBlock = 1024;

template <class Stored, class Wide, class Widen>
void widen(const std::byte* in, std::size_t count, Wide* out, Widen&& value_of) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<Wide>(value_of(load<Stored>(in + i * sizeof(Stored))));
}

template <class Stored, class Wide>
void widen_plain(const std::byte* in, std::size_t count, Wide* out) {
  widen<Stored>(in, count, out, [](Stored value) { return static_cast<Wide>(value); });
}

/// `Wide` is float, or double when the target is float64.
template <class Wide>
void widen_block(DType from, const std::byte* in, std::size_t count, Wide* out) {
  using enum DType;
  switch (from) {
    case Float64:
      return widen_plain<double>(in, count, out);
    case Float32:
      return widen_plain<float>(in, count, out);
    case Float16:
      return widen<std::uint16_t>(in, count, out, bits::from_float16);
    case BFloat16:
      return widen<std::uint16_t>(in, count, out, bits::from_bfloat16);
    case Int64:
      return widen_plain<std::int64_t>(in, count, out);
    case Int32:
      return widen_plain<std::int32_t>(in, count, out);
    case Int16:
      return widen_plain<std::int16_t>(in, count, out);
    case Int8:
      return widen_plain<std::int8_t>(in, count, out);
    case UInt64:
      return widen_plain<std::uint64_t>(in, count, out);
    case UInt32:
      return widen_plain<std::uint32_t>(in, count, out);
    case UInt16:
      return widen_plain<std::uint16_t>(in, count, out);
    case UInt8:
      return widen_plain<std::uint8_t>(in, count, out);
    case Bool:
      return widen<std::uint8_t>(in, count, out,
                                 [](std::uint8_t value) { return static_cast<Wide>(value != 0); });
    case Float8E4M3:
    case Float8E5M2:
    case Float8E4M3Fnuz:
    case Float8E5M2Fnuz:
    case Float8E8M0:
      for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<Wide>(float_at(from, in + i));
      return;
    case Complex64:
    case Complex128:
      break;
  }
  raise(ErrorCode::Unsupported, fmt::format("cannot convert {} elements", name_of(from)));
}

void narrow_block(const float* in, std::size_t count, DType to, std::byte* out) {
  switch (to) {
    case DType::Float32:
      std::memcpy(out, in, count * sizeof(float));
      return;
    case DType::BFloat16:
      for (std::size_t i = 0; i < count; ++i) store(out + 2 * i, bits::to_bfloat16(in[i]));
      return;
    default:
      for (std::size_t i = 0; i < count; ++i) store(out + 2 * i, bits::to_float16(in[i]));
  }
}

/// Whether a finite element of `from` may be beyond the range of `to`.
bool may_overflow(DType from, DType to) {
  const bool is_wide = from == DType::Float64 || (from == DType::Float32 && to == DType::BFloat16);
  return to == DType::Float16 || (is_wide && to != DType::Float64);
}

/// Returns how many of the elements are infinite; 0 for types without infinity.
std::size_t count_infinite(DType dtype, std::span<const std::byte> bytes) {
  const auto count = [&](auto infinity) {
    using Bits = decltype(infinity);
    constexpr Bits kNoSign = static_cast<Bits>(~Bits{0}) >> 1;
    std::size_t found = 0;
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(Bits))
      found += (load<Bits>(bytes.data() + at) & kNoSign) == infinity ? 1u : 0u;
    return found;
  };
  switch (dtype) {
    case DType::Float64:
      return count(std::uint64_t{0x7FF0} << 48);
    case DType::Float32:
      return count(std::uint32_t{0x7F80'0000});
    case DType::BFloat16:
      return count(std::uint16_t{0x7F80});
    case DType::Float16:
      return count(std::uint16_t{0x7C00});
    case DType::Float8E5M2:
      return count(std::uint8_t{0x7C});
    default:
      return 0;
  }
}

}  // namespace

bool convertible(DType from, DType to) {
  if (from == to) return true;
  const bool writable =
      to == DType::Float64 || to == DType::Float32 || to == DType::Float16 || to == DType::BFloat16;
  return writable && info(from).kind != Kind::Complex;
}

bool convert_elements(DType from, std::span<const std::byte> in, DType to,
                      std::span<std::byte> out) {
  if (!convertible(from, to)) {
    raise(ErrorCode::Unsupported,
          fmt::format("cannot convert {} to {}", name_of(from), name_of(to)));
  }
  if (from == to) {
    std::ranges::copy(in, out.begin());
    return false;
  }
  const std::size_t count = in.size() / size_of(from);
  float block[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    const std::byte* source = in.data() + begin * size_of(from);
    std::byte* target = out.data() + begin * size_of(to);
    if (to == DType::Float64) {
      double wide[kBlock];
      widen_block(from, source, size, wide);
      std::memcpy(target, wide, size * sizeof(double));
    } else {
      widen_block(from, source, size, block);
      narrow_block(block, size, to, target);
    }
  }
  if (!may_overflow(from, to)) return false;
  const std::size_t infinite = count_infinite(to, out.first(count * size_of(to)));
  return infinite > 0 && infinite > count_infinite(from, in);
}

}  // namespace unishard::converters
