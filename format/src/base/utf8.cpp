#include "unishard/format/utf8.hpp"

namespace unishard {

CodePoint first_code_point(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1, true};
  const CodePoint bad{lead, 1, false};
  std::size_t length = 0;
  std::uint32_t code = 0, lowest = 0;
  if ((lead & 0xe0) == 0xc0) {
    length = 2, code = lead & 0x1fu, lowest = 0x80;
  } else if ((lead & 0xf0) == 0xe0) {
    length = 3, code = lead & 0x0fu, lowest = 0x800;
  } else if ((lead & 0xf8) == 0xf0) {
    length = 4, code = lead & 0x07u, lowest = 0x10000;
  } else {
    return bad;
  }
  if (length > text.size()) return bad;
  for (std::size_t k = 1; k < length; ++k) {
    const auto next = static_cast<unsigned char>(text[k]);
    if ((next & 0xc0) != 0x80) return bad;
    code = (code << 6) | (next & 0x3fu);
  }
  if (code < lowest || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return bad;
  return {code, length, true};
}

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const CodePoint next = first_code_point(text);
    if (!next.is_valid) return false;
    text.remove_prefix(next.bytes);
  }
  return true;
}

}  // namespace unishard
