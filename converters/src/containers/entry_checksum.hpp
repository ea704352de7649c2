#pragma once
// The CRC-32 of one zip entry, combined from the parts that are read anyway: of any size, in any
// order, by several threads or processes. No byte is read a second time for it.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace unishard::converters::torch {

/// Bytes [begin, end) of an entry and their CRC-32.
struct CrcPart {
  std::uint64_t begin = 0, end = 0;
  std::uint32_t crc = 0;
};

struct ByteRange {
  std::uint64_t begin = 0, end = 0;
};

/// Collects the checksums of parts of an entry and compares them with the expected one.
/// Thread-safe.
/// Memory: one CrcPart for each contiguous range of known bytes, up to a limit that grows with the
/// entry. Beyond it all parts are dropped, and missing() returns the whole entry.
class EntryChecksum {
 public:
  enum class Verdict : std::uint8_t { Open, Right, Wrong, Ignored };

  EntryChecksum(std::uint64_t bytes, std::uint32_t expected);

  /// Adds `bytes`, which were read at `offset`. Bytes that are already known are not digested
  /// again. Returns Open until all bytes of the entry are known.
  Verdict add(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Adds a part that another process read; ignores it when it overlaps known bytes.
  /// Pre: the part lies in the entry.
  Verdict adopt(const CrcPart& part);
  /// Stops recording and comparing.
  void ignore() { verdict_ = Verdict::Ignored; }

  Verdict verdict() const { return verdict_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Returns the checksum that the archive has of the entry.
  std::uint32_t expected() const { return expected_; }
  /// Returns true once add() got at least one byte, or adopt() was called.
  bool is_touched() const { return is_touched_; }
  /// Returns what is known: a single part when that is everything.
  std::vector<CrcPart> parts() const;
  /// Returns the ranges that must still be read for a verdict; empty when there is a verdict.
  /// Pre: no other thread reads the entry.
  std::vector<ByteRange> missing();

 private:
  std::vector<ByteRange> unknown(ByteRange range) const;
  void insert(const CrcPart& part);

  const std::uint64_t bytes_;
  const std::uint32_t expected_;
  std::atomic<Verdict> verdict_ = Verdict::Open;
  std::atomic<bool> is_touched_ = false;
  /// Guards the members below.
  mutable std::mutex mutex_;
  std::vector<CrcPart> parts_;  ///< ascending; no two touch
  bool has_given_up_ = false;   ///< there were too many parts
};

}  // namespace unishard::converters::torch
