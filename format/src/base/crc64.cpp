#include "unishard/format/crc64.hpp"

#include <fmt/format.h>
#include <isa-l/crc64.h>

#include <array>

namespace unishard {
namespace {

constexpr std::uint64_t kReflectedPolynomial = 0xc96c5795d7870f42u;

// Product of two polynomials modulo the CRC's, in reflected bit order (bit 63 is x^0).
constexpr std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  for (std::uint64_t bit = std::uint64_t{1} << 63; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b & 1) ? (b >> 1) ^ kReflectedPolynomial : b >> 1;
  }
  return product;
}

// x^(2^k) for k = 0..63.
constexpr std::array<std::uint64_t, 64> make_powers() {
  std::array<std::uint64_t, 64> powers{};
  powers[0] = std::uint64_t{1} << 62;
  for (std::size_t k = 1; k < powers.size(); ++k)
    powers[k] = multiply(powers[k - 1], powers[k - 1]);
  return powers;
}
constexpr auto kPowers = make_powers();

// x^(8 * bytes): appending `bytes` zero bytes multiplies a remainder by it. Exact below 2^61 bytes.
std::uint64_t shift_by(std::uint64_t bytes) {
  std::uint64_t result = std::uint64_t{1} << 63;
  std::size_t k = 3;
  for (std::uint64_t rest = bytes; rest != 0 && k < kPowers.size(); rest >>= 1, ++k) {
    if (rest & 1) result = multiply(kPowers[k], result);
  }
  return result;
}

}  // namespace

std::uint64_t crc64(std::span<const std::byte> bytes, std::uint64_t crc) {
  return crc64_ecma_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::uint64_t crc64(std::string_view text, std::uint64_t crc) {
  return crc64(std::as_bytes(std::span(text)), crc);
}

std::uint64_t crc64_combine(std::uint64_t first, std::uint64_t second, std::uint64_t second_bytes) {
  return multiply(shift_by(second_bytes), first) ^ second;
}

std::uint64_t crc64_zeros(std::uint64_t bytes) {
  return ~multiply(shift_by(bytes), ~std::uint64_t{0});
}

std::uint64_t crc64_contribution(std::uint64_t crc, std::uint64_t bytes, std::uint64_t behind) {
  return multiply(shift_by(behind), crc ^ crc64_zeros(bytes));
}

// A product is the sum of the products with each bit, so tables of digits give it by xor.
Crc64Shift::Crc64Shift(std::uint64_t bytes) {
  std::uint64_t power = shift_by(bytes);  // times x^(63 - bit), for the bit below
  for (std::size_t bit = 64; bit-- > 0;) {
    auto& digits = table_[bit / 4];
    const std::size_t place = std::size_t{1} << bit % 4;
    digits[place] = power;
    power = (power & 1) ? (power >> 1) ^ kReflectedPolynomial : power >> 1;
  }
  for (auto& digits : table_) {
    digits[0] = 0;
    for (std::size_t digit = 3; digit < digits.size(); ++digit) {
      const std::size_t low = digit & (~digit + 1);
      if (low != digit) digits[digit] = digits[low] ^ digits[digit ^ low];
    }
  }
}

std::string hex64(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::optional<std::uint64_t> parse_hex64(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'a' && c <= 'f')) return std::nullopt;
    value = value << 4 | static_cast<std::uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

}  // namespace unishard
