#include "unishard/format/dtype.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace unishard {

const std::array<DTypeInfo, 20>& dtype_table() {
  using enum DType;
  static constexpr std::array<DTypeInfo, 20> kTable = {{
      {Float64, "float64", "F64", 8, Kind::Float},
      {Float32, "float32", "F32", 4, Kind::Float},
      {Float16, "float16", "F16", 2, Kind::Float},
      {BFloat16, "bfloat16", "BF16", 2, Kind::Float},
      {Float8E4M3, "float8_e4m3fn", "F8_E4M3", 1, Kind::Float},
      {Float8E5M2, "float8_e5m2", "F8_E5M2", 1, Kind::Float},
      {Int64, "int64", "I64", 8, Kind::Signed},
      {Int32, "int32", "I32", 4, Kind::Signed},
      {Int16, "int16", "I16", 2, Kind::Signed},
      {Int8, "int8", "I8", 1, Kind::Signed},
      {UInt64, "uint64", "U64", 8, Kind::Unsigned},
      {UInt32, "uint32", "U32", 4, Kind::Unsigned},
      {UInt16, "uint16", "U16", 2, Kind::Unsigned},
      {UInt8, "uint8", "U8", 1, Kind::Unsigned},
      {Bool, "bool", "BOOL", 1, Kind::Bool},
      {Complex64, "complex64", "C64", 8, Kind::Complex},
      {Complex128, "complex128", "C128", 16, Kind::Complex},
      {Float8E4M3Fnuz, "float8_e4m3fnuz", "F8_E4M3FNUZ", 1, Kind::Float},
      {Float8E5M2Fnuz, "float8_e5m2fnuz", "F8_E5M2FNUZ", 1, Kind::Float},
      {Float8E8M0, "float8_e8m0fnu", "F8_E8M0", 1, Kind::Float},
  }};
  return kTable;
}

const DTypeInfo& info(DType dtype) { return dtype_table()[static_cast<std::size_t>(dtype)]; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const auto& row : dtype_table()) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const auto& row : dtype_table()) {
    if (row.safetensors_name == name) return row.dtype;
  }
  return std::nullopt;
}

namespace {

// A small binary float: sign, `exponent_bits`, `mantissa_bits`.
double widen(std::uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const auto exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const bool negative = (bits >> (exponent_bits + mantissa_bits)) & 1u;
  const int top = (1 << exponent_bits) - 1;
  const int bias = top / 2;
  double value = 0;
  if (exponent == top && has_infinity) {
    value = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
  } else if (exponent == top && mantissa == (1u << mantissa_bits) - 1 && !has_infinity) {
    value = std::numeric_limits<double>::quiet_NaN();  // e4m3fn: only the all-ones pattern
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

/// Widens an 8-bit "fnuz" float: no infinity, NaN only in place of negative zero, and a bias one
/// higher.
double widen_fnuz(std::uint8_t bits, int exponent_bits, int mantissa_bits) {
  if (bits == 0x80) return std::numeric_limits<double>::quiet_NaN();
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int bias = 1 << (exponent_bits - 1);
  const double value =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits & 0x80) != 0 ? -value : value;
}

/// Powers of two from 2^-127 to 2^127, and NaN.
double widen_e8m0(std::uint8_t bits) {
  return bits == 0xff ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, bits - 127);
}

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

}  // namespace

double float_at(DType dtype, const std::byte* bytes) {
  switch (dtype) {
    case DType::Float64:
      return load<double>(bytes);
    case DType::Float32:
      return static_cast<double>(load<float>(bytes));
    case DType::BFloat16:
      return static_cast<double>(
          std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(bytes)} << 16));
    case DType::Float16:
      return widen(load<std::uint16_t>(bytes), 5, 10, true);
    case DType::Float8E4M3:
      return widen(load<std::uint8_t>(bytes), 4, 3, false);
    case DType::Float8E5M2:
      return widen(load<std::uint8_t>(bytes), 5, 2, true);
    case DType::Float8E4M3Fnuz:
      return widen_fnuz(load<std::uint8_t>(bytes), 4, 3);
    case DType::Float8E5M2Fnuz:
      return widen_fnuz(load<std::uint8_t>(bytes), 5, 2);
    case DType::Float8E8M0:
      return widen_e8m0(load<std::uint8_t>(bytes));
    default:
      return 0;
  }
}

std::uint16_t round_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>((nan ? (bits | 0x400000u) : rounded) >> 16);
}

std::uint16_t round_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {  // subnormal: let the float adder round at the right bit
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

}  // namespace unishard
