#include "containers/entry_checksum.hpp"

#include <isa-l/crc.h>
#include <zlib.h>

#include <algorithm>

namespace unishard::converters::torch {
namespace {

/// Upper bound on the parts of an entry of `bytes` bytes.
std::size_t most_parts(std::uint64_t bytes) {
  constexpr std::uint64_t kFewest = 16, kMost = 4096, kBytesPerPart = 4096;
  return std::min(kMost, kFewest + bytes / kBytesPerPart);
}

std::uint32_t crc32_of(std::span<const std::byte> bytes) {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::uint32_t combine(const CrcPart& first, const CrcPart& second) {
  return static_cast<std::uint32_t>(
      crc32_combine(first.crc, second.crc, static_cast<z_off_t>(second.end - second.begin)));
}

}  // namespace

EntryChecksum::EntryChecksum(std::uint64_t bytes, std::uint32_t expected)
    : bytes_(bytes), expected_(expected) {
  if (bytes == 0) verdict_ = Verdict::Right;
}

EntryChecksum::Verdict EntryChecksum::add(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty() || verdict_ != Verdict::Open) return verdict_;
  is_touched_ = true;
  const ByteRange range{offset, offset + bytes.size()};
  std::unique_lock lock(mutex_);
  // Repeats when another thread has added a part of the same bytes meanwhile.
  for (auto gaps = unknown(range); !gaps.empty(); gaps = unknown(range)) {
    lock.unlock();
    std::vector<CrcPart> found;
    found.reserve(gaps.size());
    for (const ByteRange& gap : gaps) {
      found.push_back(
          {gap.begin, gap.end, crc32_of(bytes.subspan(gap.begin - offset, gap.end - gap.begin))});
    }
    lock.lock();
    for (const CrcPart& part : found) insert(part);
  }
  return verdict_;
}

EntryChecksum::Verdict EntryChecksum::adopt(const CrcPart& part) {
  is_touched_ = true;
  const std::scoped_lock lock(mutex_);
  if (part.begin < part.end) insert(part);
  return verdict_;
}

std::vector<CrcPart> EntryChecksum::parts() const {
  const std::scoped_lock lock(mutex_);
  return parts_;
}

std::vector<ByteRange> EntryChecksum::missing() {
  const std::scoped_lock lock(mutex_);
  has_given_up_ = false;
  return unknown({0, bytes_});
}

/// Returns the bytes of `range` that are in no part; none when no verdict is wanted.
std::vector<ByteRange> EntryChecksum::unknown(ByteRange range) const {
  if (has_given_up_ || verdict_ != Verdict::Open) return {};
  std::vector<ByteRange> gaps;
  auto part = std::ranges::upper_bound(parts_, range.begin, {}, &CrcPart::end);
  for (; part != parts_.end() && part->begin < range.end; ++part) {
    if (part->begin > range.begin) gaps.push_back({range.begin, part->begin});
    range.begin = part->end;
  }
  if (range.begin < range.end) gaps.push_back(range);
  return gaps;
}

/// Ignores a part that overlaps another.
void EntryChecksum::insert(const CrcPart& part) {
  if (has_given_up_ || verdict_ != Verdict::Open) return;
  auto next = std::ranges::lower_bound(parts_, part.begin, {}, &CrcPart::begin);
  const bool has_previous = next != parts_.begin();
  if ((has_previous && std::prev(next)->end > part.begin) ||
      (next != parts_.end() && next->begin < part.end))
    return;
  if (has_previous && std::prev(next)->end == part.begin) {
    CrcPart& previous = *std::prev(next);
    previous.crc = combine(previous, part);
    previous.end = part.end;
    --next;
  } else {
    next = parts_.insert(next, part);
  }
  if (const auto after = std::next(next); after != parts_.end() && after->begin == next->end) {
    next->crc = combine(*next, *after);
    next->end = after->end;
    parts_.erase(after);
  }
  if (parts_.size() > most_parts(bytes_)) {
    parts_.clear();
    has_given_up_ = true;
  } else if (parts_.front().begin == 0 && parts_.front().end == bytes_) {
    verdict_ = parts_.front().crc == expected_ ? Verdict::Right : Verdict::Wrong;
  }
}

}  // namespace unishard::converters::torch
