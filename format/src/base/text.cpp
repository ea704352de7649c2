#include "unishard/format/text.hpp"

#include "unishard/format/utf8.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unishard {
namespace {

bool is_safe(std::uint32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;
  return code != 0x61c && code != 0x200e && code != 0x200f && !(code >= 0x202a && code <= 0x202e) &&
         !(code >= 0x2066 && code <= 0x2069);
}

/// Copies safe code points and replaces each unsafe one, or invalid byte, by escape(code point).
template <class Escape>
std::string filter(std::string_view text, const Escape& escape) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = first_code_point(text);
    if (next.is_valid && is_safe(next.code)) {
      out += text.substr(0, next.bytes);
    } else {
      out += escape(next);
    }
    text.remove_prefix(next.bytes);
  }
  return out;
}

std::string escaped(const CodePoint& point) {
  const bool is_byte = !point.is_valid || point.code < 0x80;
  return is_byte ? fmt::format("\\x{:02x}", point.code) : fmt::format("\\u{:04x}", point.code);
}

}  // namespace

std::string printable(std::string_view text) { return filter(text, escaped); }

std::string printable_lines(std::string_view text) {
  return filter(text, [](const CodePoint& point) {
    return point.is_valid && point.code == '\n' ? std::string("\n") : escaped(point);
  });
}

std::string printable_json(std::string_view json) {
  return filter(json, [](const CodePoint& point) {
    return point.code < 0x20 ? std::string(1, static_cast<char>(point.code))
                             : fmt::format("\\u{:04x}", point.code);
  });
}

std::string first_names(std::span<const std::string> names) {
  const auto first = names.first(std::min(names.size(), kFirstNames));
  return fmt::format("{}{}", fmt::join(first, ", "), first.size() < names.size() ? ", ..." : "");
}

}  // namespace unishard
