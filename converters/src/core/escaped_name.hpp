#pragma once
// Names of tensors that a format cannot hold as they are (HDF5's links, entries of zip archives)
// are written as "unishard.fqn:" followed by the name with %XX for every "%", "/", "\" and control
// character.
// Thread safety: pure functions.
#include <string>
#include <string_view>

namespace unishard::converters {

inline constexpr std::string_view kEscapedName = "unishard.fqn:";

/// Returns true when every part of `name` between slashes is a file name: not empty, "." or "..".
bool has_plain_parts(std::string_view name);

std::string escaped_name(std::string_view name);

/// Returns the name that `text` stands for: `text` itself unless escaped_name() wrote it.
std::string unescaped_name(std::string_view text);

}  // namespace unishard::converters
