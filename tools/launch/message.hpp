#pragma once
// What the launcher and its agent on another host send each other: messages of a kind and a
// payload of any bytes.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace unishard::tools {

/// The first line that an agent writes. What a login shell printed before it is skipped.
inline constexpr std::string_view kAgentMark = "unishard-launch-agent 1\n";

// clang-format off
//   to the agent    alive                                  once a second
//                   job      pack_job()                    once, after hello
//                   signal   number                        for all running ranks
//   to the launcher hello    pack(version, free port, address of the connection, count,
//                                 pack(interface names), pack(addresses))
//                   output   pack(rank, 1 or 2, bytes)     no bytes: the end of the stream
//                   ended    pack(rank, pid, exit code, signal)
//                   failed   text                          the ranks could not be started
// clang-format on
struct Message {
  std::string kind;
  std::string payload;
};

std::string encode(const Message& message);

/// Finds the messages in a stream of bytes. Not thread-safe.
class MessageReader {
 public:
  /// Bytes of the longest message: of a job with the longest arguments that a kernel allows.
  static constexpr std::size_t kBytesMax = std::size_t{16} << 20;

  void feed(std::string_view bytes) { buffer_ += bytes; }
  /// Returns the next message; nullopt until all of its bytes were fed.
  /// Throws: Corrupt when the bytes are no message, or a message is longer than kBytesMax.
  std::optional<Message> next();
  /// Skips the bytes before kAgentMark, and the mark; returns false until it was found.
  /// Throws: Corrupt when it is not among the first 64 KiB.
  bool skip_to_mark();

 private:
  std::string buffer_;
  bool has_mark_ = false;
};

/// Parses a decimal number of a message.
/// Throws: Corrupt.
std::uint32_t message_number(std::string_view text);

}  // namespace unishard::tools
