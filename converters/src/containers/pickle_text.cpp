#include "containers/pickle_text.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace unishard::converters::torch {
namespace {

/// Length of the UTF-8 sequence at `text`, surrogates allowed (Python writes lone ones so); 0 when
/// bad.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | (code >> 6));
  } else {
    if (code < 0x10000) {
      put(0xe0 | (code >> 12));
    } else {
      put(0xf0 | (code >> 18));
      put(0x80 | ((code >> 12) & 0x3f));
    }
    put(0x80 | ((code >> 6) & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

/// The code that the `digits` hexadecimal digits at the start of `text` spell.
std::optional<std::uint32_t> hex_code(std::string_view text, std::size_t digits) {
  std::uint32_t code = 0;
  if (text.size() < digits) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, code, 16);
  if (error != std::errc() || end != text.data() + digits || code > 0x10ffff) return std::nullopt;
  return code;
}

}  // namespace

bool is_pickle_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::optional<std::string> unquote(std::string_view line) {
  if (line.size() < 2 || line.front() != line.back() ||
      (line.front() != '\'' && line.front() != '"')) {
    return std::nullopt;
  }
  line = line.substr(1, line.size() - 2);
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out.push_back(line[i]);
      continue;
    }
    if (++i == line.size()) return std::nullopt;
    constexpr std::string_view escapes = "nrtabfv0\\'\"";
    constexpr std::string_view meanings("\n\r\t\a\b\f\v\0\\'\"", 11);
    if (line[i] == 'x') {
      const auto code = hex_code(line.substr(i + 1), 2);
      if (!code) return std::nullopt;
      out.push_back(static_cast<char>(*code));
      i += 2;
    } else if (const std::size_t known = escapes.find(line[i]); known != std::string_view::npos) {
      out.push_back(meanings[known]);
    } else {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<std::string> raw_unicode(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char next = i + 1 < line.size() ? line[i + 1] : '\0';
    if (line[i] != '\\' || (next != 'u' && next != 'U')) {
      append_utf8(out, static_cast<unsigned char>(line[i]));
      continue;
    }
    const std::size_t digits = next == 'u' ? 4 : 8;
    const auto code = hex_code(line.substr(i + 2), digits);
    if (!code) return std::nullopt;
    append_utf8(out, *code);
    i += 1 + digits;
  }
  return out;
}

}  // namespace unishard::converters::torch
