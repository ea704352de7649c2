#pragma once
// Amounts as people write and read them. Pure functions.
#include <cstdint>
#include <string>
#include <string_view>

namespace unishard::tools {

/// "5GB" is 5*10^9, "64MiB" is 64*2^20, "1.5 GB" and "4096" work too; case does not matter. Throws
/// InvalidArgument naming `what` for anything else, for nothing, and for zero.
std::uint64_t parse_bytes(std::string_view text, std::string_view what);

/// "512 B", "1.50 GiB".
std::string format_bytes(std::uint64_t bytes);
/// "1,234,567"
std::string format_count(std::uint64_t count);
/// "8 s", "2 min 05 s", "3 h 12 min"
std::string format_duration(double seconds);

}  // namespace unishard::tools
