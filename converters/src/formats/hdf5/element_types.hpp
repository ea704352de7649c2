#pragma once
// Element types of an exchange file. UniShard writes the native format's types, except that bool is
// h5py's. Foreign types are recognised by size, fields and byte order.
// Pre: the caller holds the Hdf5Lock.
#include "unishard/converters/loss.hpp"
#include "unishard/format/dtype.hpp"
#include "unishard/format/hdf5_library.hpp"

#include <optional>
#include <string_view>

namespace unishard::converters::hdf5 {

/// Attribute that names the dtype of a data set of bytes when HDF5 has no such type.
inline constexpr const char* kDTypeAttribute = "dtype";

/// Returns the type of a data set that UniShard writes. bool is h5py's enumeration of FALSE and
/// TRUE.
Hdf5Handle exchange_type(DType dtype);
/// Returns true when exchange_type() needs kDTypeAttribute.
bool needs_attribute(DType dtype);

struct ElementType {
  DType dtype = DType::Float32;
  bool as_stored = false;  ///< the file's bytes are those of dtype, little-endian
};
/// Returns the element type that `type` represents; nullopt when no tensor has it. `named` is the
/// value of kDTypeAttribute, or empty.
std::optional<ElementType> element_type(hid_t type, std::string_view named);

/// Returns a word for a type that element_type() refuses: "strings", "references", ...
std::string_view describe_type(hid_t type);
/// Returns Weight for a type of numbers that element_type() refuses, ClientValue for every other.
Role role_of_type(hid_t type);

/// Returns the memory type for H5Dread that gives little-endian elements of the data set's `type`.
Hdf5Handle memory_type(hid_t type, DType dtype);

}  // namespace unishard::converters::hdf5
