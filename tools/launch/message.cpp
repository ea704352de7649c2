#include "launch/message.hpp"

#include "unishard/format/error.hpp"

#include "team/packed_texts.hpp"

#include <fmt/format.h>

#include <charconv>

namespace unishard::tools {
namespace {

constexpr std::size_t kNoiseMax = std::size_t{64} << 10;
constexpr std::string_view kWhere = "a message between launcher and agent";

}  // namespace

std::uint32_t message_number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || at != text.data() + text.size())
    raise(ErrorCode::Corrupt, fmt::format("{}: {} is no number", kWhere, quote(text)));
  return value;
}

// A message is one packed text, whose content is kind and payload, packed.
std::string encode(const Message& message) { return pack({pack({message.kind, message.payload})}); }

std::optional<Message> MessageReader::next() {
  const std::size_t newline = buffer_.find('\n');
  if (newline == std::string::npos) {
    if (buffer_.size() > 10) message_number(buffer_);
    return std::nullopt;
  }
  const std::size_t bytes = message_number(std::string_view(buffer_).substr(0, newline));
  if (bytes > kBytesMax)
    raise(ErrorCode::Corrupt, fmt::format("{}: it has {} bytes", kWhere, bytes));
  const std::size_t begin = newline + 1;
  if (buffer_.size() - begin < bytes) return std::nullopt;
  std::vector<std::string> parts =
      unpack(std::string_view(buffer_).substr(begin, bytes), 2, kWhere);
  buffer_.erase(0, begin + bytes);
  return Message{.kind = std::move(parts[0]), .payload = std::move(parts[1])};
}

bool MessageReader::skip_to_mark() {
  if (has_mark_) return true;
  const std::size_t at = buffer_.find(kAgentMark);
  has_mark_ = at != std::string::npos;
  if (has_mark_) buffer_.erase(0, at + kAgentMark.size());
  if (!has_mark_ && buffer_.size() > kNoiseMax)
    raise(ErrorCode::Corrupt, fmt::format("no agent of this version answers: {}", quote(buffer_)));
  return has_mark_;
}

}  // namespace unishard::tools
