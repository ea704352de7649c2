#pragma once
// Element types. One table row per type: name as torch prints it, name in safetensors, bytes.
// Values only; safe from any thread.
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
  std::string_view name;              ///< "float32": used in manifests and messages
  std::string_view safetensors_name;  ///< "F32"
  std::uint8_t bytes;                 ///< per element
  Kind kind;
};

/// All types in enumerator order.
const std::array<DTypeInfo, 20>& dtype_table();
const DTypeInfo& info(DType dtype);

inline std::uint64_t size_of(DType dtype) { return info(dtype).bytes; }
inline std::string_view name_of(DType dtype) { return info(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name);
std::optional<DType> dtype_from_safetensors(std::string_view name);

/// Exact widening to double of one little-endian element of a Float kind at `bytes`
/// (size_of(dtype) readable bytes).
double float_at(DType dtype, const std::byte* bytes);

/// IEEE 754 round-to-nearest-even of a float32 to the upper half (bfloat16) or to binary16; NaN
/// stays a quiet NaN with its upper payload bits. The rounding that torch's `.to()` does.
std::uint16_t round_to_bfloat16(float value);
std::uint16_t round_to_float16(float value);

}  // namespace unishard
