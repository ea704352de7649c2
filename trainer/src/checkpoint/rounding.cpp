// The loop over a block has no branches, so that the compiler vectorises it.
#include "checkpoint/rounding.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace unishard::trainer::detail {
namespace {

constexpr std::size_t kBlock = 4096;  // elements
constexpr std::uint32_t kExponent = 0x7f800000u;

std::uint16_t load16(const std::byte* at) {
  std::uint16_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// The finite case of round_to_bfloat16() inline. Returns false also for values that need a closer
/// check.
bool is_finite_rounding(std::span<const float> master, const std::byte* stored) {
  std::uint32_t differences = 0;
  for (std::size_t i = 0; i < master.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(master[i]);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    differences |= rounded ^ load16(stored + i * 2);
    differences |= static_cast<std::uint32_t>((bits & kExponent) == kExponent);
  }
  return differences == 0;
}

bool is_exact_rounding(std::span<const float> master, const std::byte* stored, DType dtype) {
  const auto round = dtype == DType::Float16 ? round_to_float16 : round_to_bfloat16;
  for (std::size_t i = 0; i < master.size(); ++i) {
    if (round(master[i]) != load16(stored + i * 2)) return false;
  }
  return true;
}

}  // namespace

bool is_rounding(std::span<const float> master, std::span<const std::byte> stored, DType dtype) {
  const bool is_brain = dtype == DType::BFloat16;
  for (std::size_t begin = 0; begin < master.size(); begin += kBlock) {
    const auto block = master.subspan(begin, std::min(kBlock, master.size() - begin));
    const std::byte* const theirs = stored.data() + begin * 2;
    if (is_brain && is_finite_rounding(block, theirs)) continue;
    if (!is_exact_rounding(block, theirs, dtype)) return false;
  }
  return true;
}

}  // namespace unishard::trainer::detail
