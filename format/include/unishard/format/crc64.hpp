#pragma once
// CRC-64/XZ, computed by ISA-L: ECMA-182 polynomial, reflected, inverted in and out; the check
// value of "123456789" is 0x995dc9bbdf1939fa.
// The checksum of a+b follows from the checksums of a and b and the length of b. One pass over the
// bytes therefore gives the digests of chunks, fragments and tensors. A CRC detects damage, not
// malice.
// Thread safety: pure functions.
#include <array>
#include <cstddef>
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

/// Returns what `crc`, of `bytes` bytes, adds by xor to the checksum of a longer text in which
/// `behind` bytes follow them: the checksum of the text is the xor of the contributions of its
/// parts and of crc64_zeros() of its length.
std::uint64_t crc64_contribution(std::uint64_t crc, std::uint64_t bytes, std::uint64_t behind);

/// Multiplies remainders by x^(8 * bytes), which moves contributions `bytes` bytes further from the
/// end. Takes 2 KiB. An immutable value.
class Crc64Shift {
 public:
  explicit Crc64Shift(std::uint64_t bytes);

  std::uint64_t operator()(std::uint64_t remainder) const {
    std::uint64_t product = 0;
    for (std::size_t digit = 0; digit < table_.size(); ++digit)
      product ^= table_[digit][remainder >> (4 * digit) & 15];
    return product;
  }

 private:
  std::array<std::array<std::uint64_t, 16>, 16> table_;
};

/// Returns `value` as 16 lower-case hexadecimal digits.
std::string hex64(std::uint64_t value);
/// Reads what hex64() returns; nullopt for anything else, upper case included.
std::optional<std::uint64_t> parse_hex64(std::string_view text);

}  // namespace unishard
