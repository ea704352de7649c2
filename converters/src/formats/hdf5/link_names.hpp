#pragma once
// Maps tensor names to paths of links in an HDF5 file, and back. "/" makes groups. A name that HDF5
// cannot represent in that way ("a//b", ".", "a" beside "a/b") is escaped, in the root group.
// Thread safety: pure functions.
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::hdf5 {

/// Returns one distinct path per name, without a leading "/".
/// Pre: the names are distinct.
std::vector<std::string> link_paths(const std::vector<std::string_view>& names);

/// Returns the name that a link path represents.
std::string name_of_link(std::string_view path);

/// Attribute of a data set that holds its tensor's name, if the path differs from it or several
/// paths lead to the data set.
inline constexpr const char* kNameAttribute = "fqn";

/// Deepest nesting of groups that is written and read.
inline constexpr int kGroupDepth = 64;

}  // namespace unishard::converters::hdf5
