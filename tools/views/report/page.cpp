#include "views/report/page.hpp"

#include "unishard/format/text.hpp"

#include "views/report/page_parts.hpp"

#include <array>
#include <cstdint>
#include <utility>

namespace unishard::cli {
namespace {

constexpr std::string_view kMark = "<!doctype html><!-- unishard report -->";

unsigned hex_value(char digit) {
  return static_cast<unsigned>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

/// Returns the base64 of bytes given in hexadecimal, as a content security policy wants digests.
std::string base64_of_hex(std::string_view hex) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 6) {  // three bytes become four digits
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 6; ++k)
      bits = bits << 4 | (i + k < hex.size() ? hex_value(hex[i + k]) : 0);
    const std::size_t digits = i + 6 <= hex.size() ? 4 : (hex.size() - i) / 2 + 1;
    for (std::size_t k = 0; k < 4; ++k)
      out += k < digits ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

/// Returns JSON that cannot end the element that contains it, and that is safe to print.
std::string json_for_script(const Json& data) {
  const std::string text =
      printable_json(data.dump(-1, ' ', false, Json::error_handler_t::replace));
  std::string out;
  out.reserve(text.size() + text.size() / 64);
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string report_page(const Json& data) {
  const std::string policy =
      "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-" +
      base64_of_hex(kPageStyleSha256) + "'; script-src 'sha256-" +
      base64_of_hex(kPageScriptSha256) + "'";
  const std::string json = json_for_script(data);
  const std::array<std::pair<std::string_view, std::string_view>, 4> parts = {
      {{"{{policy}}", policy},
       {"{{style}}", kPageStyle},
       {"{{data}}", json},
       {"{{script}}", kPageScript}}};
  std::string out(kMark);
  std::string_view rest = kPageHtml;  // the placeholders stand in this order
  for (const auto& [placeholder, text] : parts) {
    const std::size_t at = rest.find(placeholder);
    out.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + placeholder.size());
  }
  return out.append(rest);
}

std::string_view report_mark() { return kMark; }

}  // namespace unishard::cli
