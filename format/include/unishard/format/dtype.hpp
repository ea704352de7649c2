#pragma once
// Element types. dtype_table() lists for each its name in torch, its name in safetensors and its
// size.
// Thread safety: values and pure functions.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace unishard {

enum class DType : std::uint8_t {
  Float64,
  Float32,
  Float16,
  BFloat16,
  Float8E4M3,
  Float8E5M2,
  Int64,
  Int32,
  Int16,
  Int8,
  UInt64,
  UInt32,
  UInt16,
  UInt8,
  Bool,
  Complex64,
  Complex128,
  Float8E4M3Fnuz,
  Float8E5M2Fnuz,
  Float8E8M0,
};

enum class Kind : std::uint8_t { Float, Signed, Unsigned, Bool, Complex };

struct DTypeInfo {
  DType dtype;
  std::string_view name;  ///< for example "float32", as in torch, manifests and messages
  std::string_view safetensors_name;  ///< for example "F32"
  std::uint8_t bytes;                 ///< bytes per element
  Kind kind;
};

/// Returns all types in enumerator order.
const std::array<DTypeInfo, 20>& dtype_table();
const DTypeInfo& info(DType dtype);

inline std::uint64_t size_of(DType dtype) { return info(dtype).bytes; }
inline std::string_view name_of(DType dtype) { return info(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name);
std::optional<DType> dtype_from_safetensors(std::string_view name);

/// Widens one little-endian element to double, exactly; returns 0 for types of another kind than
/// Float.
/// Pre: size_of(dtype) bytes at `bytes` are readable.
double float_at(DType dtype, const std::byte* bytes);

/// Round a float32 to the upper half (bfloat16) or to binary16 by IEEE 754 round-to-nearest-even,
/// as torch's `.to()` does. NaN becomes a quiet NaN with its upper payload bits.
std::uint16_t round_to_bfloat16(float value);
std::uint16_t round_to_float16(float value);

}  // namespace unishard
