#include "checkpoint/rounding.hpp"

#include "unishard/format/dtype.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

namespace unishard::test {
namespace {

using trainer::detail::is_rounding;

/// Floats of every exponent and sign, halves included, and what they round to.
struct Values {
  Values() {
    for (std::uint32_t high = 0; high < 0x10000; ++high) {
      const std::uint32_t low = std::vector{0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}[high % 6];
      master.push_back(std::bit_cast<float>(high << 16 | low));
      stored.push_back(round_to_bfloat16(master.back()));
    }
  }
  bool agree() const {
    return is_rounding(master, std::as_bytes(std::span(stored)), DType::BFloat16);
  }
  std::vector<float> master;
  std::vector<std::uint16_t> stored;
};

TEST(Rounding, IsThatOfTheFormatForEveryKindOfNumber) { EXPECT_TRUE(Values().agree()); }

TEST(Rounding, OneOtherBitIsSeen) {
  Values values;
  for (const std::size_t at : {0u, 1u, 0x3f80u, 0x7f81u, 0x8000u, 0xffc1u, 0xffffu}) {
    values.stored[at] ^= 1;
    EXPECT_FALSE(values.agree()) << at;
    values.stored[at] ^= 1;
  }
}

TEST(Rounding, InfinityForANanIsSeen) {
  const std::vector<float> master{std::bit_cast<float>(0x7f800001u)};
  const std::vector<std::uint16_t> stored{0x7f80};
  EXPECT_FALSE(is_rounding(master, std::as_bytes(std::span(stored)), DType::BFloat16));
}

}  // namespace
}  // namespace unishard::test
