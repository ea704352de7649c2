#pragma once
// A Directory as text, for the pipe from the process that read it.
// Thread safety: pure functions.
#include "formats/hdf5/directory.hpp"

#include <string>
#include <string_view>

namespace unishard::converters::hdf5 {

std::string encode_directory(const Directory& directory);
/// Throws: Corrupt, naming `where`, for a text that encode_directory() does not write.
Directory decode_directory(std::string_view text, const std::string& where);

}  // namespace unishard::converters::hdf5
