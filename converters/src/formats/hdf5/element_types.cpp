#include "formats/hdf5/element_types.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>

namespace unishard::converters::hdf5 {
namespace {

/// sign, exponent, mantissa from the highest bit down.
struct FloatFields {
  DType dtype;
  std::size_t exponent_bits, mantissa_bits, bias;
};
constexpr std::array<FloatFields, 8> kFloats = {{{DType::Float64, 11, 52, 1023},
                                                 {DType::Float32, 8, 23, 127},
                                                 {DType::Float16, 5, 10, 15},
                                                 {DType::BFloat16, 8, 7, 127},
                                                 {DType::Float8E5M2, 5, 2, 15},
                                                 {DType::Float8E4M3, 4, 3, 7},
                                                 {DType::Float8E5M2Fnuz, 5, 2, 16},
                                                 {DType::Float8E4M3Fnuz, 4, 3, 8}}};

std::optional<DType> float_type(hid_t type) {
  std::size_t sign = 0;
  std::size_t exponent = 0;
  std::size_t exponent_bits = 0;
  std::size_t mantissa = 0;
  std::size_t mantissa_bits = 0;
  if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0 ||
      H5Tget_offset(type) != 0 || H5Tget_norm(type) != H5T_NORM_IMPLIED) {
    return std::nullopt;
  }
  const std::size_t bits = 1 + exponent_bits + mantissa_bits;
  if (mantissa != 0 || exponent != mantissa_bits || sign + 1 != bits ||
      8 * H5Tget_size(type) != bits || H5Tget_precision(type) != bits) {
    return std::nullopt;
  }
  for (const FloatFields& known : kFloats) {
    if (known.exponent_bits == exponent_bits && known.mantissa_bits == mantissa_bits &&
        known.bias == H5Tget_ebias(type)) {
      return known.dtype;
    }
  }
  return std::nullopt;
}

std::optional<DType> integer_type(hid_t type, bool is_signed) {
  const std::size_t bytes = H5Tget_size(type);
  if (H5Tget_offset(type) != 0 || H5Tget_precision(type) != 8 * bytes) return std::nullopt;
  switch (bytes) {
    case 1:
      return is_signed ? DType::Int8 : DType::UInt8;
    case 2:
      return is_signed ? DType::Int16 : DType::UInt16;
    case 4:
      return is_signed ? DType::Int32 : DType::UInt32;
    case 8:
      return is_signed ? DType::Int64 : DType::UInt64;
    default:
      return std::nullopt;
  }
}

/// h5py's bool: FALSE = 0 and TRUE = 1 in one byte.
bool is_bool(hid_t type) {
  if (H5Tget_size(type) != 1 || H5Tget_nmembers(type) != 2) return false;
  std::int8_t no = -1;
  std::int8_t yes = -1;
  return H5Tenum_valueof(type, "FALSE", &no) >= 0 && H5Tenum_valueof(type, "TRUE", &yes) >= 0 &&
         no == 0 && yes == 1;
}

std::optional<DType> enum_type(hid_t type) {
  if (is_bool(type)) return DType::Bool;
  const Hdf5Handle base(H5Tget_super(type), H5Tclose);
  return integer_type(base, H5Tget_sign(base) == H5T_SGN_2);
}

bool has_member(hid_t type, unsigned index, const char* name, std::size_t offset) {
  const std::unique_ptr<char, herr_t (*)(void*)> member(H5Tget_member_name(type, index),
                                                        H5free_memory);
  return member && std::strcmp(member.get(), name) == 0 &&
         H5Tget_member_offset(type, index) == offset;
}

/// Two equal floats, r and i.
std::optional<DType> complex_type(hid_t type) {
  const std::size_t part_bytes = H5Tget_size(type) / 2;
  if (H5Tget_nmembers(type) != 2 || !has_member(type, 0, "r", 0) ||
      !has_member(type, 1, "i", part_bytes)) {
    return std::nullopt;
  }
  const Hdf5Handle real(H5Tget_member_type(type, 0), H5Tclose);
  const Hdf5Handle imaginary(H5Tget_member_type(type, 1), H5Tclose);
  if (H5Tget_class(real) != H5T_FLOAT || H5Tequal(real, imaginary) <= 0) return std::nullopt;
  const std::optional<DType> part = float_type(real);
  if (part == DType::Float32 && part_bytes == 4) return DType::Complex64;
  if (part == DType::Float64 && part_bytes == 8) return DType::Complex128;
  return std::nullopt;
}

/// The lowest member's byte order; a compound type may mix them.
H5T_order_t order_of(hid_t type) {
  return H5Tget_size(type) == 1 ? H5T_ORDER_LE : H5Tget_order(type);
}

std::optional<DType> dtype_of(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return float_type(type);
    case H5T_INTEGER:
      return integer_type(type, H5Tget_sign(type) == H5T_SGN_2);
    case H5T_BITFIELD:
      return integer_type(type, false);
    case H5T_ENUM:
      return enum_type(type);
    case H5T_COMPOUND:
      return complex_type(type);
    default:
      return std::nullopt;
  }
}

Hdf5Handle h5py_bool() {
  Hdf5Handle type(H5Tenum_create(H5T_STD_I8LE), H5Tclose);
  for (const auto& [name, value] : {std::pair{"FALSE", std::int8_t{0}}, {"TRUE", std::int8_t{1}}})
    H5Tenum_insert(type, name, &value);
  return type;
}

}  // namespace

Hdf5Handle exchange_type(DType dtype) {
  return dtype == DType::Bool ? h5py_bool() : hdf5_type(dtype);
}

bool needs_attribute(DType dtype) { return size_of(dtype) == 1 && info(dtype).kind == Kind::Float; }

std::optional<ElementType> element_type(hid_t type, std::string_view named) {
  std::optional<DType> dtype = dtype_of(type);
  if (!dtype) return std::nullopt;
  const H5T_order_t order = order_of(type);
  if (order != H5T_ORDER_LE && order != H5T_ORDER_BE) return std::nullopt;
  const std::optional<DType> claimed = dtype_from_name(named);
  if (dtype == DType::UInt8 && claimed && size_of(*claimed) == 1) dtype = claimed;
  return ElementType{.dtype = *dtype, .as_stored = order == H5T_ORDER_LE};
}

std::string_view describe_type(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
    case H5T_INTEGER:
    case H5T_BITFIELD:
    case H5T_ENUM:
      return "numbers of a type that tensors do not have";
    case H5T_COMPOUND:
      return "records of several fields";
    case H5T_STRING:
      return "strings";
    case H5T_REFERENCE:
      return "references";
    case H5T_OPAQUE:
      return "opaque bytes";
    case H5T_VLEN:
      return "lists of varying length";
    case H5T_ARRAY:
      return "arrays as elements";
    default:
      return "elements of an unknown type";
  }
}

Role role_of_type(hid_t type) {
  const H5T_class_t kind = H5Tget_class(type);
  const bool is_other =
      kind == H5T_STRING || kind == H5T_REFERENCE || kind == H5T_OPAQUE || kind == H5T_VLEN;
  return is_other ? Role::ClientValue : Role::Weight;
}

Hdf5Handle memory_type(hid_t type, DType dtype) {
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_ENUM) {
    Hdf5Handle base(H5Tget_super(type), H5Tclose);
    H5Tset_order(base, H5T_ORDER_LE);
    return base;
  }
  if (kind == H5T_COMPOUND) return hdf5_type(dtype);
  Hdf5Handle copy(H5Tcopy(type), H5Tclose);
  H5Tset_order(copy, H5T_ORDER_LE);
  return copy;
}

}  // namespace unishard::converters::hdf5
