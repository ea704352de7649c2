#pragma once
// Reads the payload of an open shard: whole chunks are read, compared with their checksums and
// decoded before any byte is returned.
#include "unishard/format/shard_reader.hpp"

#include "shard/shard_tables.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace unishard::detail {

/// The files of an open shard.
struct ShardFiles {
  std::unique_ptr<File> own;
  std::vector<std::unique_ptr<File>> bases = {};  ///< parallel to ShardEntry::bases

  const File& of(const ChunkRow& row) const { return row.file == 0 ? *own : *bases[row.file - 1]; }
};

/// Lifetime: `tables` must outlive this object.
/// Thread safety: thread-safe.
class ShardPayload {
 public:
  ShardPayload(const ShardTables& tables, ShardFiles files, std::shared_ptr<ChunkCache> cache)
      : tables_(tables), files_(std::move(files)), cache_(std::move(cache)) {}

  /// Reads decoded bytes of data set `set`, from byte `at` on, into `out`.
  /// Pre: the bytes are in the padded data set.
  /// Throws: Corrupt, naming the file, its bytes and the damaged elements.
  void read(std::size_t set, std::uint64_t at, std::span<std::byte> out) const;

  /// Reads `count` chunks of data set `set`, from `first` on, into `buffer`. Returns the damaged
  /// ones.
  /// Pre: `buffer` has room for `count` times chunk_bytes bytes.
  std::vector<ShardReader::Damage> check(std::size_t set, std::uint64_t first, std::uint64_t count,
                                         std::span<std::byte> buffer) const;

 private:
  /// Reads whole chunks from `chunk` on, as many as fill `out`, and calls visit(chunk, is_sound)
  /// for each.
  template <class Visit>
  void visit_chunks(std::size_t set, std::uint64_t chunk, std::span<std::byte> out,
                    const Visit& visit) const;
  /// Returns how many of the `bytes` bytes from `chunk` on are whole chunks that are stored
  /// uncompressed and back to back in one file.
  std::uint64_t plain_run(std::size_t set, std::uint64_t chunk, std::uint64_t bytes) const;
  /// Reads one encoded chunk. Returns false when it does not match its checksum or cannot be
  /// decoded.
  bool decode(std::size_t set, std::uint64_t chunk, std::span<std::byte> out) const;
  void read_chunks(std::size_t set, std::uint64_t first, std::span<std::byte> out) const;
  /// Reads all or a part of `out`; returns the number of bytes.
  std::uint64_t read_some(std::size_t set, std::uint64_t at, std::span<std::byte> out) const;
  std::uint64_t whole_chunks(std::size_t set, std::uint64_t chunk, std::uint64_t bytes) const;
  bool has_windows(std::size_t set) const;
  std::uint64_t read_window(std::size_t set, std::uint64_t first, std::uint64_t inside,
                            std::span<std::byte> out) const;
  void keep(std::size_t set, std::uint64_t chunk, std::span<const std::byte> bytes) const;
  ShardReader::Damage damage(std::size_t set, std::uint64_t chunk) const;
  [[noreturn]] void raise_damaged(const ShardReader::Damage& bad) const;

  const ShardTables& tables_;
  const ShardFiles files_;
  const std::shared_ptr<ChunkCache> cache_;
};

}  // namespace unishard::detail
