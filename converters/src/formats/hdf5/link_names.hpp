#pragma once
// Names of tensors as paths of links in an HDF5 file, and back. "/" makes groups. A name that HDF5
// cannot hold so ("a//b", ".", "a" beside "a/b") is written in the root group as "unishard.fqn:"
// and the name with %XX for every "%", "/" and control character. Pure functions; any thread.
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::hdf5 {

/// One path per name, without a leading "/", all of them different. Pre: the names are.
std::vector<std::string> link_paths(const std::vector<std::string_view>& names);

/// The name that a link path stands for.
std::string name_of_link(std::string_view path);

/// Attribute of a data set with its tensor's name: where that is not the path, and where several
/// paths lead to it.
inline constexpr const char* kNameAttribute = "fqn";

/// Groups in groups: deeper ones are not written, and not read.
inline constexpr int kGroupDepth = 64;

}  // namespace unishard::converters::hdf5
