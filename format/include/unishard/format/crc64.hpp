#pragma once
// CRC-64/XZ, computed by ISA-L: ECMA-182 polynomial, reflected, inverted in and out; the check
// value of "123456789" is 0x995dc9bbdf1939fa.
// The checksum of a+b follows from the checksums of a and b and the length of b. One pass over the
// bytes therefore gives the digests of chunks, fragments and tensors. A CRC detects damage, not
// malice.
// Thread safety: pure functions.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace unishard {

/// Returns the checksum of the bytes that gave `crc` followed by `bytes`. A `crc` of 0 starts anew.
std::uint64_t crc64(std::span<const std::byte> bytes, std::uint64_t crc = 0);
std::uint64_t crc64(std::string_view text, std::uint64_t crc = 0);

/// Returns the checksum of a+b from `first` (of a) and `second` (of b).
/// Complexity: O(log second_bytes). Exact for second_bytes below 2^61.
std::uint64_t crc64_combine(std::uint64_t first, std::uint64_t second, std::uint64_t second_bytes);

/// Returns the checksum of `bytes` bytes that are all zero, without reading memory.
std::uint64_t crc64_zeros(std::uint64_t bytes);

/// Returns `value` as 16 lower-case hexadecimal digits.
std::string hex64(std::uint64_t value);
/// Reads what hex64() returns; nullopt for anything else, upper case included.
std::optional<std::uint64_t> parse_hex64(std::string_view text);

}  // namespace unishard
