#pragma once
// The element and metadata types of GGUF:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
// Thread safety: pure functions.
#include "unishard/format/dtype.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace unishard::converters::gguf {

/// Returns the element type with this number; nullopt for a quantized or unknown one.
std::optional<DType> dtype_of(std::uint32_t number);
/// Returns the number of an element type; nullopt when GGUF does not have it.
std::optional<std::uint32_t> number_of(DType dtype);
/// Returns true for a type of tensors that GGUF has, quantized or not.
bool is_known_type(std::uint32_t number);
/// Returns "Q4_K", or "type 99" for an unknown number.
std::string name_of_type(std::uint32_t number);

enum class ValueType : std::uint32_t {
  UInt8,
  Int8,
  UInt16,
  Int16,
  UInt32,
  Int32,
  Float32,
  Bool,
  String,
  Array,
  UInt64,
  Int64,
  Float64,
};
inline constexpr std::uint32_t kValueTypes = 13;

/// Returns "uint32", and the reverse.
std::string_view name_of(ValueType type);
std::optional<ValueType> value_type_from_name(std::string_view name);
/// Returns the bytes of a value; 0 for strings and arrays, which have a length of their own.
std::uint64_t bytes_of(ValueType type);

}  // namespace unishard::converters::gguf
