#pragma once
// Decodes texts in the arguments of pickle opcodes.
// Thread safety: pure functions.
#include <optional>
#include <string>
#include <string_view>

namespace unishard::converters::torch {

/// Returns true when `text` is UTF-8. Encoded surrogates are allowed, because Python writes lone
/// ones.
bool is_pickle_utf8(std::string_view text);
bool is_ascii(std::string_view text);

/// Returns the value of a Python 2 string literal (opcode STRING); nullopt when it is none.
std::optional<std::string> unquote(std::string_view line);
/// Returns the value of the line of opcode UNICODE, in which \uXXXX and \UXXXXXXXX are escapes and
/// all other bytes are Latin-1; nullopt when it cannot be parsed.
std::optional<std::string> raw_unicode(std::string_view line);

}  // namespace unishard::converters::torch
