#pragma once
// The payload of an open shard: whole chunks are read, compared with their checksums, decoded, and
// only then handed out.
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
  std::vector<std::unique_ptr<File>> bases = {};  ///< as ShardEntry::bases

  const File& of(const ChunkRow& row) const { return row.file == 0 ? *own : *bases[row.file - 1]; }
};

/// Lifetime: the tables must outlive it.
/// Thread safety: thread-safe.
class ShardPayload {
 public:
  ShardPayload(const ShardTables& tables, ShardFiles files, std::shared_ptr<ChunkCache> cache)
      : tables_(tables), files_(std::move(files)), cache_(std::move(cache)) {}

  /// Reads the bytes of data set `set` from byte `at` on, decoded, into `out`.
  /// Pre: they lie in the padded data set.
  /// Throws: Corrupt naming the file, its bytes, and the elements that are damaged.
  void read(std::size_t set, std::uint64_t at, std::span<std::byte> out) const;

  /// Reads `count` chunks of data set `set` from `first` on into `buffer` and returns those that
  /// are damaged.
  /// Pre: `buffer` has chunk_bytes for each.
  std::vector<ShardReader::Damage> check(std::size_t set, std::uint64_t first, std::uint64_t count,
                                         std::span<std::byte> buffer) const;

 private:
  /// Reads whole chunks from `chunk` on, as many as fill `out`, and calls visit(chunk, whether it
  /// is sound) for each.
  template <class Visit>
  void visit_chunks(std::size_t set, std::uint64_t chunk, std::span<std::byte> out,
                    const Visit& visit) const;
  /// How many of `bytes` bytes from `chunk` on are whole chunks that lie uncompressed and back to
  /// back in one file.
  std::uint64_t plain_run(std::size_t set, std::uint64_t chunk, std::uint64_t bytes) const;
  /// Reads one chunk that is encoded. Returns whether its bytes match their checksum and decode.
  bool decode(std::size_t set, std::uint64_t chunk, std::span<std::byte> out) const;
  void read_chunks(std::size_t set, std::uint64_t first, std::span<std::byte> out) const;
  /// Reads some or all of `out` and returns how many bytes.
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
