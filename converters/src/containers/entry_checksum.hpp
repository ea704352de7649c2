#pragma once
// The CRC-32 of one zip entry, put together from what is read of it: parts of any size, in any
// order, by several threads or processes. CRC-32 combines, so that no byte is read again for it.
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

/// Thread-safe. Memory: one CrcPart for each run of bytes that touches no other, up to a limit that
/// grows with the entry; beyond it what was noted is dropped, and missing() is the whole entry.
class EntryChecksum {
 public:
  enum class Verdict : std::uint8_t { Open, Right, Wrong, Ignored };

  EntryChecksum(std::uint64_t bytes, std::uint32_t expected);

  /// `bytes` were read from `offset` on. What was noted before is not noted twice, whatever the
  /// ranges are. Returns Open until all bytes of the entry are known.
  Verdict add(std::uint64_t offset, std::span<const std::byte> bytes);
  /// The same for a part that another process read. A part that overlaps with what is known is left
  /// out. Pre: it lies in the entry.
  Verdict adopt(const CrcPart& part);
  /// From now on nothing is noted or compared.
  void ignore() { verdict_ = Verdict::Ignored; }

  Verdict verdict() const { return verdict_; }
  std::uint64_t bytes() const { return bytes_; }
  /// True after the first add() of at least a byte.
  bool is_touched() const { return is_touched_; }
  /// What is known: one part when that is everything.
  std::vector<CrcPart> parts() const;
  /// What must still be read to tell; empty when the verdict is known. Call it when nothing else is
  /// being read.
  std::vector<ByteRange> missing();

 private:
  std::vector<ByteRange> unknown(ByteRange range) const;
  void insert(const CrcPart& part);

  const std::uint64_t bytes_;
  const std::uint32_t expected_;
  std::atomic<Verdict> verdict_ = Verdict::Open;
  std::atomic<bool> is_touched_ = false;
  mutable std::mutex mutex_;    ///< guards the rest
  std::vector<CrcPart> parts_;  ///< ascending; no two touch
  bool has_given_up_ = false;   ///< there were too many
};

}  // namespace unishard::converters::torch
