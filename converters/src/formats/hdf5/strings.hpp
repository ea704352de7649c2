#pragma once
// Scalar strings of an HDF5 file, of fixed or varying length. Call under Hdf5Lock.
#include "unishard/format/hdf5_library.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace unishard::converters::hdf5 {

/// An attribute's text; nullopt when there is none of this name, or it is no single string of at
/// most 64 KiB.
std::optional<std::string> text_attribute(hid_t object, const char* name);

/// The text of a data set; nullopt when it is no single string of at most `limit_bytes`.
std::optional<std::string> text_of(hid_t data_set, std::uint64_t limit_bytes);

/// Creates it. Returns false with HDF5's reasons waiting.
bool write_text_attribute(hid_t object, const char* name, const std::string& text);

/// The type of a string of exactly `bytes` bytes of UTF-8, and of one byte for none.
Hdf5Handle text_type(std::uint64_t bytes);

}  // namespace unishard::converters::hdf5
