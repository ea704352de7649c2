// Data order, token windows, seeds and the ordered sums.
#include "unishard/format/error.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/fold.hpp"
#include "unishard/trainer/sample_order.hpp"
#include "unishard/trainer/seeds.hpp"
#include "unishard/trainer/token_file.hpp"

#include "expect.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace unishard::trainer {
namespace {

using test::write_file;

TEST(SampleOrder, IsAPermutationOfEveryEpoch) {
  for (const std::uint64_t samples : {1u, 2u, 3u, 5u, 64u, 65u, 1000u}) {
    const SampleOrder order(samples, 42);
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<std::uint64_t> seen;
      for (std::uint64_t i = 0; i < samples; ++i) seen.insert(order.sample(epoch * samples + i));
      EXPECT_EQ(seen.size(), samples);
      EXPECT_EQ(*seen.rbegin(), samples - 1);
      EXPECT_EQ(order.epoch(epoch * samples), epoch);
    }
  }
}

TEST(SampleOrder, DependsOnSeedAndEpoch) {
  const SampleOrder a(1000, 1), b(1000, 2);
  int same_seed = 0, same_epoch = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    same_seed += a.sample(i) == b.sample(i);
    same_epoch += a.sample(i) == a.sample(i + 1000);
  }
  EXPECT_LT(same_seed, 20);
  EXPECT_LT(same_epoch, 20);
}

TEST(SampleOrder, StaysWhatItIs) {  // a change here changes every run that is resumed
  const SampleOrder order(1000, 1234);
  const std::vector<std::uint64_t> found{order.sample(0), order.sample(1), order.sample(999),
                                         order.sample(1000), order.sample(123456)};
  EXPECT_EQ(found, (std::vector<std::uint64_t>{316, 947, 80, 782, 809}));
  EXPECT_EQ(seed_from({1, 2, 3}), 7702586659592502839u);
  EXPECT_EQ(initial_value_seed(1234, 1), 10850081896131835390u);
  EXPECT_EQ(dropout_seed(1234, 5, 6, 7), 2750111990323072767u);
  EXPECT_EQ(dropout_seed(1234, 5, 6, 7, 0), 2750111990323072767u);
  EXPECT_NE(dropout_seed(1234, 5, 6, 7, 1), 2750111990323072767u);
}

TEST(TokenFile, ReadsOverlappingWindows) {
  const test::TempDir folder;
  const auto path = folder.path() / "text";
  write_file(path, "abcdefghi\xff");
  const TokenFile tokens(posix_storage(), path, 4);
  EXPECT_EQ(tokens.samples(), 2u);
  std::vector<std::int64_t> window(5);
  tokens.read(1, window);
  EXPECT_EQ(window, (std::vector<std::int64_t>{'e', 'f', 'g', 'h', 'i'}));
  EXPECT_THROW(tokens.read(2, window), Error);
  EXPECT_THROW(TokenFile(posix_storage(), path, 10), Error);
}

TEST(TokenFile, ReadsSixteenBitTokensOfTheVocabulary) {
  const test::TempDir folder;
  const auto path = folder.path() / "train.bin";
  const std::string bytes("\x01\x00\xff\x00\x00\x01\x50\xc3\x02\x00", 10);
  write_file(path, bytes);
  const TokenFile tokens(posix_storage(), path, 2, {TokenType::UInt16});
  EXPECT_EQ(tokens.samples(), 2u);
  std::vector<std::int64_t> window(3);
  tokens.read(0, window, 257);
  EXPECT_EQ(window, (std::vector<std::int64_t>{1, 255, 256}));
  tokens.read(1, window, 50257);
  EXPECT_EQ(window, (std::vector<std::int64_t>{256, 50000, 2}));
  EXPECT_THAT(test::error_of([&] { tokens.read(1, window, 50000); }).what(),
              testing::HasSubstr("token 50000 at byte 6"));
  write_file(path, bytes + 'x');
  EXPECT_THROW(TokenFile(posix_storage(), path, 2, {TokenType::UInt16}), Error) << "half a token";
}

TEST(TokenFile, FindsATokenBeyondTheVocabularyWithoutReadingSamples) {
  const test::TempDir folder;
  const auto path = folder.path() / "train.bin";
  std::string bytes(300'000, '\0');
  bytes[299'999] = '\x02';  // the last token is 512
  write_file(path, bytes);
  const TokenFile tokens(posix_storage(), path, 2, {TokenType::UInt16});
  EXPECT_NO_THROW(tokens.require_vocabulary(513));
  EXPECT_THAT(test::error_of([&] { tokens.require_vocabulary(512); }).what(),
              testing::HasSubstr("token 512 at byte 299998"));
}

/// Tokens as `width` little-endian bytes each.
std::string little_endian(const std::vector<std::uint32_t>& tokens, std::size_t width) {
  std::string bytes;
  for (const std::uint32_t token : tokens) {
    for (std::size_t i = 0; i < width; ++i) bytes += static_cast<char>(token >> (8 * i));
  }
  return bytes;
}

/// llm.c's header, and the tokens.
std::string with_header(std::uint32_t magic, std::uint32_t version, std::uint32_t count,
                        const std::string& tokens) {
  std::string header = little_endian({magic, version, count}, 4);
  header.resize(1024);
  return header + tokens;
}

class TokenFormats : public testing::Test {
 protected:
  TokenFormat of(const std::string& bytes, std::optional<TokenType> asked = {},
                 std::int64_t vocabulary = 50257) const {
    write_file(path_, bytes);
    return token_format_of(posix_storage(), path_, asked, vocabulary);
  }
  std::string refusal(const std::string& bytes, std::optional<TokenType> asked = {},
                      std::int64_t vocabulary = 50257) const {
    const Error error = test::error_of([&] { of(bytes, asked, vocabulary); });
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    return error.what();
  }
  test::TempDir folder_;
  Path path_ = folder_.path() / "train.bin";
};

TEST_F(TokenFormats, AHeaderStatesTheWidth) {
  const std::vector<std::uint32_t> ids{7, 128000, 9, 65536, 1};
  const auto format = of(with_header(20240801, 7, 5, little_endian(ids, 4)), {}, 128256);
  EXPECT_EQ(format.type, TokenType::UInt32);
  EXPECT_EQ(format.header, 1024u);
  const TokenFile tokens(posix_storage(), path_, 2, format);
  EXPECT_EQ(tokens.samples(), 2u);
  std::vector<std::int64_t> window(3);
  tokens.read(1, window, 128256);
  EXPECT_EQ(window, (std::vector<std::int64_t>{9, 65536, 1}));
  EXPECT_THAT(test::error_of([&] { tokens.read(0, window, 128000); }).what(),
              testing::HasSubstr("token 128000 at byte 1028"));
  EXPECT_EQ(of(with_header(20240520, 1, 5, little_endian({1, 2, 3, 4, 5}, 2))).type,
            TokenType::UInt16);
}

TEST_F(TokenFormats, AHeaderIsFoundUnderEveryName) {
  path_ = folder_.path() / "tokens";
  const auto format = of(with_header(20240520, 1, 3, little_endian({1, 2, 3}, 2)));
  EXPECT_EQ(format.type, TokenType::UInt16);
  EXPECT_EQ(format.header, 1024u);
  EXPECT_EQ(of(with_header(20240520, 1, 3, "xy"), TokenType::Bytes).header, 0u);
}

TEST_F(TokenFormats, AHeaderOfAnotherVersionIsRefused) {
  EXPECT_THAT(refusal(with_header(20240520, 9, 3, little_endian({1, 2, 3}, 2))),
              testing::HasSubstr("a header of llm.c of version 9; UniShard reads version 1"));
}

TEST_F(TokenFormats, AHeaderIsNotContradicted) {
  const std::string file = with_header(20240801, 7, 5, little_endian({1, 2, 3, 4, 5}, 4));
  EXPECT_THAT(refusal(file, TokenType::UInt16),
              testing::HasSubstr("has a header for uint32 tokens, and --tokens says uint16"));
  EXPECT_EQ(of(file, TokenType::UInt32).header, 1024u);
  EXPECT_THAT(refusal(file.substr(0, file.size() - 4)),
              testing::HasSubstr("5 tokens, which make 1044 bytes, and has 1040"));
}

TEST_F(TokenFormats, ABareFileOfALargeVocabularyNeedsItsWidth) {
  const std::string file = little_endian({1, 128000, 3, 4}, 4);
  EXPECT_THAT(refusal(file, {}, 128256), testing::HasSubstr("16 or 32 bits"));
  EXPECT_EQ(of(file, TokenType::UInt32, 128256).type, TokenType::UInt32);
  EXPECT_EQ(of(file, TokenType::UInt16, 128256).type, TokenType::UInt16);
}

TEST_F(TokenFormats, ABareFileThatSeemsToHaveWiderTokensIsRefused) {
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < 3000; ++i) ids.push_back(i * 13 % 50257);
  EXPECT_THAT(refusal(little_endian(ids, 4)), testing::HasSubstr("every second number is 0"));
  EXPECT_EQ(of(little_endian(ids, 4), TokenType::UInt32).type, TokenType::UInt32);
  EXPECT_EQ(of(little_endian(ids, 2)).type, TokenType::UInt16);
  EXPECT_EQ(of(little_endian(ids, 2)).header, 0u);
}

TEST_F(TokenFormats, OtherFilesAreTexts) {
  const Path text = folder_.path() / "text.txt";
  write_file(text, std::string(2000, 'a'));
  EXPECT_EQ(token_format_of(posix_storage(), text, {}, 256).type, TokenType::Bytes);
  EXPECT_EQ(of("a text that is called .bin", TokenType::Bytes).type, TokenType::Bytes);
  EXPECT_THAT(refusal("a text", TokenType::Bytes, 255), testing::HasSubstr("at least 256"));
}

TEST(Fold, AddsInOrderAndWidensBfloat16) {
  std::vector<float> sum{1, 2};
  const std::vector<float> values{0.5F, -2};
  fold_add(sum, DType::Float32, std::as_bytes(std::span(values)));
  EXPECT_EQ(sum, (std::vector<float>{1.5F, 0}));
  const std::vector<std::uint16_t> halves{0x3f80, 0xbf80};  // 1, -1
  fold_add(sum, DType::BFloat16, std::as_bytes(std::span(halves)));
  EXPECT_EQ(sum, (std::vector<float>{2.5F, -1}));
  EXPECT_THROW(fold_add(sum, DType::Float32, std::as_bytes(std::span(halves))), Error);
}

TEST(SingleCommunicator, CopiesAndAdds) {
  const auto single = make_single_communicator();
  EXPECT_EQ(gather_text(*single, "hello"), std::vector<std::string>{"hello"});
  EXPECT_EQ(gather_text(*single, ""), std::vector<std::string>{""});
  EXPECT_EQ(agree_max(*single, -3), -3);
  const std::vector<double> values{1, 2};
  EXPECT_EQ(gather_doubles(*single, values), values);
}

}  // namespace
}  // namespace unishard::trainer
