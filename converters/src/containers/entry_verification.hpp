#pragma once
// Source::verify_reads() of formats that are made of zip archives: each process says which parts of
// which entries it read; every entry is completed by one of them.
#include "unishard/converters/source.hpp"

#include "containers/tensor_view.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::torch {

/// Entries that were read from, each with its number. All processes that opened the same checkpoint
/// give an entry the same number.
using TouchedEntries = std::vector<std::pair<std::uint64_t, const EntryChecksum*>>;

/// One line per part: number of the entry, first byte, the byte after the last, CRC-32.
std::string encode_parts(const TouchedEntries& entries);

struct EntryVerification {
  TouchedEntries touched;     ///< by this process
  std::uint64_t entries = 0;  ///< numbers are below
  const ReadPeers* peers = nullptr;
  /// The storage of an entry; it has a checksum.
  std::function<std::shared_ptr<const StorageBytes>(std::uint64_t number)> open;
};
/// Compares every entry that was touched by any process, and that is this one's to complete.
/// Returns the bytes that it read for that. Throws DamagedEntry; Corrupt for parts that cannot be.
std::uint64_t verify_entries(const EntryVerification& job, const TransferOptions& options);

}  // namespace unishard::converters::torch
