#pragma once
// Checked arithmetic on numbers that come from files. On overflow every function throws Corrupt and
// names the quantity `what`.
// Thread safety: pure functions.
#include "unishard/format/error.hpp"

#include <concepts>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

namespace unishard {

/// Throws Corrupt: "<what> is out of range".
[[noreturn]] void raise_overflow(std::string_view what);

inline std::uint64_t checked_add(std::uint64_t a, std::uint64_t b, std::string_view what) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) raise_overflow(what);
  return sum;
}

inline std::uint64_t checked_mul(std::uint64_t a, std::uint64_t b, std::string_view what) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) raise_overflow(what);
  return product;
}

template <std::integral To, std::integral From>
To checked_cast(From value, std::string_view what) {
  if (!std::in_range<To>(value)) raise_overflow(what);
  return static_cast<To>(value);
}

/// Returns the smallest multiple of `unit` that is at least `value`.
/// Pre: unit > 0.
inline std::uint64_t round_up(std::uint64_t value, std::uint64_t unit, std::string_view what) {
  return checked_add(value, unit - 1, what) / unit * unit;
}

}  // namespace unishard
