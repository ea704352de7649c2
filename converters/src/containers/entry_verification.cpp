#include "containers/entry_verification.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <sstream>

namespace unishard::converters::torch {
namespace {

using PartsByEntry = std::map<std::uint64_t, std::vector<CrcPart>>;

/// Adds the parts in `text` of entries that are assigned to this process.
void decode_parts(const std::string& text, const EntryVerification& job, PartsByEntry& entries) {
  std::istringstream lines(text);
  std::uint64_t number = 0;
  CrcPart part;
  while (lines >> number >> part.begin >> part.end >> part.crc) {
    if (number >= job.entries || part.begin > part.end)
      raise(ErrorCode::Corrupt, "another process read parts of other files");
    if (number % job.peers->share.size == job.peers->share.rank) entries[number].push_back(part);
  }
  if (!lines.eof()) raise(ErrorCode::Corrupt, "what another process read cannot be understood");
}

PartsByEntry entries_to_complete(const EntryVerification& job) {
  PartsByEntry entries;
  if (job.peers->share.size == 1) {
    for (const auto& [number, checksum] : job.touched) entries[number];
  } else {
    for (const std::string& text : job.peers->parts) decode_parts(text, job, entries);
  }
  return entries;
}

void adopt(const StorageBytes& storage, const std::vector<CrcPart>& parts) {
  for (const CrcPart& part : parts) {
    if (part.end > storage.checksum->bytes())
      raise(ErrorCode::Corrupt, "another process read parts of other files");
    storage.require(storage.checksum->adopt(part));
  }
}

struct Rest {
  std::shared_ptr<const StorageBytes> storage;
  ByteRange range;
};

void cut(std::shared_ptr<const StorageBytes> storage, ByteRange gap, std::uint64_t piece_bytes,
         std::vector<Rest>& rests) {
  for (; gap.begin < gap.end; gap.begin = rests.back().range.end)
    rests.push_back({storage, {gap.begin, std::min(gap.begin + piece_bytes, gap.end)}});
}

}  // namespace

std::string encode_parts(const TouchedEntries& entries) {
  std::string text;
  for (const auto& [number, checksum] : entries) {
    // An empty part records that the entry was read from, even when no part is known.
    text += fmt::format("{} 0 0 0\n", number);
    for (const CrcPart& part : checksum->parts())
      text += fmt::format("{} {} {} {}\n", number, part.begin, part.end, part.crc);
  }
  return text;
}

std::uint64_t verify_entries(const EntryVerification& job, const TransferOptions& options) {
  std::vector<Rest> rests;
  for (const auto& [number, parts] : entries_to_complete(job)) {
    const auto storage = job.open(number);
    adopt(*storage, parts);
    storage->require(storage->checksum->verdict());
    for (const ByteRange& gap : storage->checksum->missing())
      cut(storage, gap, options.buffer_bytes, rests);
  }
  std::atomic<std::uint64_t> bytes = 0;
  run_bounded(rests.size(), options, [&](std::size_t index, std::span<std::byte> buffer) {
    const auto& [storage, range] = rests[index];
    storage->read(range.begin, buffer.first(range.end - range.begin));
    bytes += range.end - range.begin;
    return std::uint64_t{0};  // not part of the announced bytes
  });
  return bytes;
}

}  // namespace unishard::converters::torch
