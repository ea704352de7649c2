#pragma once
// CRC-64/XZ (ECMA-182 polynomial, reflected, inverted in and out; check value of "123456789" is
// 0x995dc9bbdf1939fa), computed by ISA-L. It is used because it combines: the checksum of a+b
// follows from those of a and b and the length of b, so chunk, fragment and tensor digests share
// one pass over the bytes. It detects damage, not malice. Pure functions; any thread.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace unishard {

/// Continues `crc` (0 to start) over `bytes`.
std::uint64_t crc64(std::span<const std::byte> bytes, std::uint64_t crc = 0);
std::uint64_t crc64(std::string_view text, std::uint64_t crc = 0);

/// The checksum of a+b. O(log second_bytes).
std::uint64_t crc64_combine(std::uint64_t first, std::uint64_t second, std::uint64_t second_bytes);

/// The checksum of `bytes` zero bytes, without reading any.
std::uint64_t crc64_zeros(std::uint64_t bytes);

/// 16 lower-case hexadecimal digits, and back (nullopt for anything else, upper case included).
std::string hex64(std::uint64_t value);
std::optional<std::uint64_t> parse_hex64(std::string_view text);

}  // namespace unishard
