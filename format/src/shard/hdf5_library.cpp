#include "unishard/format/hdf5_library.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard {
namespace {

std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

herr_t append_error(unsigned, const H5E_error2_t* item, void* text) {
  auto& out = *static_cast<std::string*>(text);
  if (item->desc != nullptr && out.size() < 500)
    out += fmt::format("{}{}", out.empty() ? "" : "; ", item->desc);
  return 0;
}

Hdf5Handle complex_type(hid_t part, std::size_t part_bytes) {
  Hdf5Handle type(H5Tcreate(H5T_COMPOUND, 2 * part_bytes), H5Tclose);
  H5Tinsert(type, "r", 0, part);
  H5Tinsert(type, "i", part_bytes, part);
  return type;
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(hdf5_mutex()) {
  // Otherwise HDF5 would close, at the program's end, what it could not close before (on a full
  // disk), and crash.
  static const herr_t first = H5dont_atexit();
  static_cast<void>(first);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // reasons go into our messages, not to stderr
}

Hdf5Lock::~Hdf5Lock() { H5Eclear2(H5E_DEFAULT); }

std::string hdf5_reasons() {
  std::string reasons;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, append_error, &reasons);
  // They quote names from the file, which may hold anything.
  std::ranges::replace_if(
      reasons, [](char c) { return c < ' ' || c > '~'; }, '?');
  return reasons;
}

ErrorCode hdf5_failure(std::string_view reasons) {
  return reasons.find("memory allocation failed") == std::string_view::npos
             ? ErrorCode::Corrupt
             : ErrorCode::MemoryLimit;
}

Hdf5Handle hdf5_float(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias) {
  Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(type, exponent_bits + mantissa_bits, mantissa_bits, exponent_bits, 0,
                mantissa_bits);
  H5Tset_size(type, (1 + exponent_bits + mantissa_bits) / 8);
  H5Tset_ebias(type, bias);
  return type;
}

Hdf5Handle hdf5_type(DType dtype) {
  const auto stock = [](hid_t type) { return Hdf5Handle(H5Tcopy(type), H5Tclose); };
  switch (dtype) {
    case DType::Float64:
      return stock(H5T_IEEE_F64LE);
    case DType::Float32:
      return stock(H5T_IEEE_F32LE);
    case DType::Float16:
      return hdf5_float(5, 10, 15);
    case DType::BFloat16:
      return hdf5_float(8, 7, 127);
    case DType::Int64:
      return stock(H5T_STD_I64LE);
    case DType::Int32:
      return stock(H5T_STD_I32LE);
    case DType::Int16:
      return stock(H5T_STD_I16LE);
    case DType::Int8:
      return stock(H5T_STD_I8LE);
    case DType::UInt64:
      return stock(H5T_STD_U64LE);
    case DType::UInt32:
      return stock(H5T_STD_U32LE);
    case DType::UInt16:
      return stock(H5T_STD_U16LE);
    case DType::Complex64:
      return complex_type(H5T_IEEE_F32LE, 4);
    case DType::Complex128:
      return complex_type(H5T_IEEE_F64LE, 8);
    case DType::Float8E4M3:
    case DType::Float8E5M2:
    case DType::Float8E4M3Fnuz:
    case DType::Float8E5M2Fnuz:
    case DType::Float8E8M0:
    case DType::UInt8:
    case DType::Bool:
      return stock(H5T_STD_U8LE);
  }
  raise(ErrorCode::Internal, "a dtype without an HDF5 type");
}

}  // namespace unishard
