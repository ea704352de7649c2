#pragma once
// Amounts in the form in which people read and write them.
// Thread safety: pure functions.
#include <cstdint>
#include <string>
#include <string_view>

namespace unishard::tools {

/// Parses an amount of bytes: "5GB" is 5*10^9, "64MiB" is 64*2^20, "1.5 GB" and "4096" are
/// accepted; case does not matter.
/// Throws: InvalidArgument, naming `what`, for anything else, an empty text and zero.
std::uint64_t parse_bytes(std::string_view text, std::string_view what);

/// Returns, for example, "512 B" or "1.50 GiB".
std::string format_bytes(std::uint64_t bytes);
/// Returns, for example, "1,234,567".
std::string format_count(std::uint64_t count);
/// Returns, for example, "8 s", "2 min 05 s" or "3 h 12 min".
std::string format_duration(double seconds);

}  // namespace unishard::tools
