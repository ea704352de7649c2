#pragma once
// How a file stores its tokens: the bytes of a text, or little-endian numbers of 16 or 32 bits,
// bare as nanoGPT's prepare scripts write them, or behind the header of llm.c, which states their
// width and count.
// Thread safety: values and pure functions.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <optional>
#include <string_view>

namespace unishard::trainer {

inline constexpr std::int64_t kByteVocabulary = 256;

enum class TokenType : std::uint8_t { Bytes, UInt16, UInt32 };

std::uint64_t size_of(TokenType type);
/// Returns "bytes", "uint16" or "uint32".
std::string_view name_of(TokenType type);

struct TokenFormat {
  TokenType type = TokenType::Bytes;
  std::uint64_t header = 0;  ///< bytes before the first token
};

/// Finds out how `path` stores the tokens of a model with `vocabulary` tokens: as its header says,
/// else as `asked` says, else bare 16-bit numbers in *.bin and bytes in all other files. Nothing is
/// guessed where 32 bits are possible: then a bare *.bin needs `asked`.
/// Throws: InvalidArgument when `asked` contradicts the header, when the header has another version
/// or contradicts the size of the file, when a bare *.bin could or seems to have 32 bits, or when
/// the vocabulary has no place for every byte of a text.
TokenFormat token_format_of(Storage& storage, const Path& path, std::optional<TokenType> asked,
                            std::int64_t vocabulary);

}  // namespace unishard::trainer
