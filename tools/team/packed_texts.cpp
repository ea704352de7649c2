#include "team/packed_texts.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

namespace unishard::tools {

// Each text is its length in decimal digits, a newline and its bytes.
std::string pack(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts)
    out.append(std::to_string(text.size())).append(1, '\n').append(text);
  return out;
}

std::vector<std::string> unpack(std::string_view text, std::size_t count, std::string_view where) {
  std::vector<std::string> texts;
  while (!text.empty()) {
    std::uint64_t bytes = 0;
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, bytes);
    const bool has_length = error == std::errc() && at != end && *at == '\n';
    if (has_length) text.remove_prefix(static_cast<std::size_t>(at - text.data()) + 1);
    if (!has_length || bytes > text.size() || texts.size() == count)
      raise(ErrorCode::Corrupt, fmt::format("{}: not {} packed texts", where, count));
    texts.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  if (texts.size() != count)
    raise(ErrorCode::Corrupt, fmt::format("{}: not {} packed texts", where, count));
  return texts;
}

}  // namespace unishard::tools
