#pragma once
// Element types of an exchange file. Ours are the native format's, with h5py's own bool; others'
// are taken by what they are: sizes, fields and byte order. Call under Hdf5Lock.
#include "unishard/format/dtype.hpp"
#include "unishard/format/hdf5_library.hpp"

#include <optional>
#include <string_view>

namespace unishard::converters::hdf5 {

/// Attribute of a data set of bytes that names what they are, where HDF5 has no type for it.
inline constexpr const char* kDTypeAttribute = "dtype";

/// The type of a data set that we write. bool is h5py's enumeration of FALSE and TRUE.
Hdf5Handle exchange_type(DType dtype);
/// Whether exchange_type() needs the attribute.
bool needs_attribute(DType dtype);

struct ElementType {
  DType dtype = DType::Float32;
  bool as_stored = false;  ///< the bytes in the file are those of dtype, little-endian
};
/// What elements of `type` are; nullopt for what no tensor has. `named` is the value of the
/// attribute, or empty.
std::optional<ElementType> element_type(hid_t type, std::string_view named);

/// "strings", "references", ...: what element_type() does not take, in words.
std::string_view describe_type(hid_t type);

/// The type to ask H5Dread for, so that it gives little-endian elements of the data set's `type`.
Hdf5Handle memory_type(hid_t type, DType dtype);

}  // namespace unishard::converters::hdf5
