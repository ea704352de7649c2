#pragma once
// Scalar strings of an HDF5 file, of fixed or variable length.
// Pre: the caller holds the Hdf5Lock.
#include "unishard/format/hdf5_library.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace unishard::converters::hdf5 {

/// Returns an attribute's text; nullopt when it is missing or is not a single string of at most 64
/// KiB.
std::optional<std::string> text_attribute(hid_t object, const char* name);

/// Returns the text of a data set; nullopt when it is not a single string of at most `limit_bytes`.
std::optional<std::string> text_of(hid_t data_set, std::uint64_t limit_bytes);

/// Creates the attribute. Returns false on failure; hdf5_reasons() then explains it.
bool write_text_attribute(hid_t object, const char* name, const std::string& text);

/// Returns the type of a UTF-8 string of exactly `bytes` bytes; of one byte for 0.
Hdf5Handle text_type(std::uint64_t bytes);

}  // namespace unishard::converters::hdf5
