#pragma once
// Names of arrays in an .npz archive: numpy's key for the entry "<key>.npy". A name that would be
// misread, or that leads out of a folder when someone unpacks the archive, is escaped
// (escaped_name.hpp).
// Thread safety: pure functions.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::numpy {

/// Entries that hold no tensor: JSON as an array of bytes.
inline constexpr std::string_view kTypesKey = "unishard.dtypes";

/// Returns the name of the entry for each tensor.
/// Pre: the names are distinct.
std::vector<std::string> entry_names(const std::vector<std::string>& names);
/// Returns the entry of one of our own keys.
std::string own_entry_name(std::string_view key);

/// Returns the key of an entry; nullopt when it is no array.
std::optional<std::string> key_of_entry(std::string_view entry);

}  // namespace unishard::converters::numpy
