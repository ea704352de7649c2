#include "unishard/trainer/token_format.hpp"

#include "unishard/format/error.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace unishard::trainer {
namespace {

constexpr std::string_view kHint = "--tokens uint16 or --tokens uint32 says what the file holds";

/// llm.c's header: 256 numbers of 32 bits, of which the first three are magic, version and count.
constexpr std::uint64_t kHeaderBytes = 1024;
struct Header {
  std::uint32_t magic, version;
  TokenType type;
};
constexpr std::array<Header, 2> kHeaders = {{
    {20240520, 1, TokenType::UInt16},
    {20240801, 7, TokenType::UInt32},
}};

std::uint32_t number_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value |= std::to_integer<std::uint32_t>(bytes[at + i]) << (8 * i);
  return value;
}

std::string file_name(const File& file) { return "data file " + quote(file.path().string()); }

std::vector<std::byte> first_bytes(const File& file, std::uint64_t most) {
  std::vector<std::byte> bytes(std::min(most, file.size()));
  file.read_at(0, bytes);
  return bytes;
}

std::optional<TokenType> header_type(const File& file) {
  if (file.size() < kHeaderBytes) return std::nullopt;
  const auto bytes = first_bytes(file, kHeaderBytes);
  const auto* const header = std::ranges::find(kHeaders, number_at(bytes, 0), &Header::magic);
  if (header == kHeaders.end()) return std::nullopt;
  if (const std::uint32_t version = number_at(bytes, 4); version != header->version) {
    raise(ErrorCode::InvalidArgument,
          file_name(file) + " has a header of llm.c of version " + std::to_string(version) +
              "; UniShard reads version " + std::to_string(header->version),
          "write the tokens anew with a current script of llm.c, or without a header");
  }
  const std::uint64_t count = number_at(bytes, 8);
  const std::uint64_t expected = kHeaderBytes + count * size_of(header->type);
  if (file.size() != expected) {
    raise(ErrorCode::InvalidArgument,
          file_name(file) + " has a header for " + std::to_string(count) + " tokens, which make " +
              std::to_string(expected) + " bytes, and has " + std::to_string(file.size()),
          "the file was cut off or is still being written");
  }
  return header->type;
}

/// Numbers of 32 bits below 65536 are, read as 16 bits, followed by 0 each.
bool seems_to_have_32_bits(const File& file) {
  constexpr std::uint64_t kLookAt = 4096, kEnough = 64;
  if (file.size() % 4 != 0 || file.size() < kEnough) return false;
  const auto bytes = first_bytes(file, kLookAt);
  for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4) {
    if (number_at(bytes, at) >= 1u << 16) return false;
  }
  return true;
}

TokenType bare_type(const File& file, std::int64_t vocabulary) {
  if (vocabulary > 1 << 16) {
    raise(ErrorCode::InvalidArgument,
          file_name(file) +
              " does not say whether its tokens have 16 or 32 bits, and the model's " +
              std::to_string(vocabulary) + " tokens need more than 16",
          std::string(kHint));
  }
  if (seems_to_have_32_bits(file)) {
    raise(ErrorCode::InvalidArgument,
          file_name(file) +
              " would be read as 16-bit tokens, and seems to have 32-bit ones: every "
              "second number is 0",
          std::string(kHint));
  }
  return TokenType::UInt16;
}

}  // namespace

std::uint64_t size_of(TokenType type) {
  return type == TokenType::Bytes ? 1 : type == TokenType::UInt16 ? 2 : 4;
}

std::string_view name_of(TokenType type) {
  return type == TokenType::Bytes ? "bytes" : type == TokenType::UInt16 ? "uint16" : "uint32";
}

TokenFormat token_format_of(Storage& storage, const Path& path, std::optional<TokenType> asked,
                            std::int64_t vocabulary) {
  const auto file = storage.open(path);
  const bool is_text =
      asked ? *asked == TokenType::Bytes : path.extension() != ".bin" && !header_type(*file);
  if (is_text) {
    if (vocabulary >= kByteVocabulary) return {};
    raise(ErrorCode::InvalidArgument, "the model's vocab_size is " + std::to_string(vocabulary) +
                                          ", and the tokens are bytes: at least 256 are needed");
  }
  const auto stated = header_type(*file);
  if (!stated) return {.type = asked ? *asked : bare_type(*file, vocabulary)};
  if (asked && *asked != *stated) {
    raise(ErrorCode::InvalidArgument,
          file_name(*file) + " has a header for " + std::string(name_of(*stated)) +
              " tokens, and --tokens says " + std::string(name_of(*asked)));
  }
  return {.type = *stated, .header = kHeaderBytes};
}

}  // namespace unishard::trainer
