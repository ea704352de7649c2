#include "tensorboard_event.hpp"

#include <array>
#include <bit>
#include <cstddef>

namespace train_gpt {
namespace {

/// Appends an unsigned number with its lowest byte first.
template <class Number>
void append_number(std::string& out, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i)
    out += static_cast<char>(static_cast<unsigned char>(number >> (8 * i)));
}

void append_varint(std::string& out, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) out += static_cast<char>(number | 0x80);
  out += static_cast<char>(number);
}

enum class Wire : std::uint8_t { Varint = 0, Eight = 1, Bytes = 2, Four = 5 };

void append_tag(std::string& out, std::uint64_t field, Wire wire) {
  append_varint(out, field << 3 | static_cast<std::uint64_t>(wire));
}

void append_bytes(std::string& out, std::uint64_t field, std::string_view bytes) {
  append_tag(out, field, Wire::Bytes);
  append_varint(out, bytes.size());
  out += bytes;
}

/// CRC-32C, bit by bit: a record has some fifty bytes.
std::uint32_t crc32c(std::string_view bytes) {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
  }
  return ~crc;
}

/// The checksum as records store it, so that it is not the checksum of a text with checksums.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8;
}

std::string record(std::string_view event) {
  std::string out;
  append_number(out, std::uint64_t{event.size()});
  append_number(out, masked_crc(out));
  out += event;
  append_number(out, masked_crc(event));
  return out;
}

// Fields of Event, of Summary and of Summary.Value.
constexpr std::uint64_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
constexpr std::uint64_t kValue = 1, kTag = 1, kSimpleValue = 2;

std::string event_at(double unix_seconds) {
  std::string event;
  append_tag(event, kWallTime, Wire::Eight);
  append_number(event, std::bit_cast<std::uint64_t>(unix_seconds));
  return event;
}

}  // namespace

std::string first_event(double unix_seconds) {
  std::string event = event_at(unix_seconds);
  append_bytes(event, kFileVersion, "brain.Event:2");
  return record(event);
}

std::string scalar_event(std::string_view name, double value, std::int64_t step,
                         double unix_seconds) {
  std::string entry;
  append_bytes(entry, kTag, name);
  append_tag(entry, kSimpleValue, Wire::Four);
  append_number(entry, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  std::string summary;
  append_bytes(summary, kValue, entry);
  std::string event = event_at(unix_seconds);
  append_tag(event, kStep, Wire::Varint);
  append_varint(event, static_cast<std::uint64_t>(step));
  append_bytes(event, kSummary, summary);
  return record(event);
}

}  // namespace train_gpt
