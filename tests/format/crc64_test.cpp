#include "unishard/format/crc64.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace unishard {
namespace {

TEST(Crc64, HasThePublishedCheckValue) {
  EXPECT_EQ(crc64("123456789"), 0x995dc9bbdf1939fau);
  EXPECT_EQ(crc64(""), 0u);
}

RC_GTEST_PROP(Crc64, CombinesTwoParts, (const std::string& a, const std::string& b)) {
  RC_ASSERT(crc64_combine(crc64(a), crc64(b), b.size()) == crc64(a + b));
  RC_ASSERT(crc64(b, crc64(a)) == crc64(a + b));
}

TEST(Crc64, CombinesAcrossLongZeroRuns) {
  const std::string zeros(5'000'003, '\0');
  EXPECT_EQ(crc64_zeros(zeros.size()), crc64(zeros));
  EXPECT_EQ(crc64_combine(crc64("abc"), crc64_zeros(zeros.size()), zeros.size()),
            crc64("abc" + zeros));
  const std::uint64_t huge = std::uint64_t{1} << 44;  // associativity where bytes cannot be made
  EXPECT_EQ(crc64_combine(crc64_zeros(huge), crc64_zeros(huge), huge), crc64_zeros(2 * huge));
}

TEST(Crc64, HexIsStrict) {
  EXPECT_EQ(hex64(0xabcu), "0000000000000abc");
  EXPECT_EQ(parse_hex64("0000000000000abc"), 0xabcu);
  EXPECT_EQ(parse_hex64("0000000000000ABC"), std::nullopt);
  EXPECT_EQ(parse_hex64("abc"), std::nullopt);
  EXPECT_EQ(parse_hex64("000000000000 abc"), std::nullopt);
}

}  // namespace
}  // namespace unishard
