#pragma once
// How the pickle machine's instructions spell text. Pure.
#include <optional>
#include <string>
#include <string_view>

namespace unishard::converters::torch {

/// Returns whether `text` is UTF-8; encoded surrogates are allowed, because Python writes lone
/// ones.
bool is_pickle_utf8(std::string_view text);
bool is_ascii(std::string_view text);

/// Returns what a Python 2 string literal (STRING) means; nullopt when it is not one.
std::optional<std::string> unquote(std::string_view line);
/// Returns what the line of UNICODE means: raw but for \uXXXX and \UXXXXXXXX, other bytes are
/// Latin-1; nullopt when it does not parse.
std::optional<std::string> raw_unicode(std::string_view line);

}  // namespace unishard::converters::torch
