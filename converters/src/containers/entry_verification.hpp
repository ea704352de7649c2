#pragma once
// Implements Source::verify_reads() for formats made of zip archives: each process reports which
// parts of which entries it read, and one process completes each entry.
#include "unishard/converters/source.hpp"

#include "containers/tensor_view.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::torch {

/// Entries of which something was read, each with its number. All processes that opened the same
/// checkpoint give an entry the same number.
using TouchedEntries = std::vector<std::pair<std::uint64_t, const EntryChecksum*>>;

/// Returns one line per part: number of the entry, first byte, end (exclusive), CRC-32.
std::string encode_parts(const TouchedEntries& entries);

/// Lifetime: everything it refers to must outlive verify_entries().
struct EntryVerification {
  TouchedEntries touched;     ///< entries that this process read from
  std::uint64_t entries = 0;  ///< number of entries of the checkpoint
  const ReadPeers* peers = nullptr;
  /// Returns the storage of entry `number`, which has a checksum.
  std::function<std::shared_ptr<const StorageBytes>(std::uint64_t number)> open;
};
/// Completes and compares the checksum of every entry that any process read from and that is
/// assigned to this process. Returns the bytes read for that.
/// Throws: DamagedEntry on a mismatch; Corrupt when the parts of a process are invalid.
std::uint64_t verify_entries(const EntryVerification& job, const TransferOptions& options);

}  // namespace unishard::converters::torch
