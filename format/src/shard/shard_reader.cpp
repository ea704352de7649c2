#include "unishard/format/shard_reader.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/io.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/memory.hpp"

#include "codec/chunk_codec.hpp"
#include "shard/chunk_cache.hpp"
#include "shard/tables.hpp"
#include "storage/block_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_map>

namespace unishard {

using detail::Extent;

std::shared_ptr<ChunkCache> make_chunk_cache(std::uint64_t capacity_bytes) {
  return std::make_shared<ChunkCache>(capacity_bytes);
}

namespace {

/// What there is of `from` from byte `inside` on, as much as `out` takes. Returns the bytes.
std::uint64_t copy_part(std::span<const std::byte> from, std::uint64_t inside,
                        std::span<std::byte> out) {
  const std::uint64_t count = std::min<std::uint64_t>(out.size(), from.size() - inside);
  std::memcpy(out.data(), from.data() + inside, count);
  return count;
}

}  // namespace

struct ShardReader::Impl {
  Path path;
  ShardEntry entry;
  const Catalog& catalog;
  std::uint64_t chunk_bytes;
  std::shared_ptr<ChunkCache> cache;
  std::unique_ptr<File> file;
  std::vector<std::unique_ptr<File>> bases;  // as entry.bases
  std::vector<IndexRow> rows;
  std::vector<std::vector<ChunkRow>> chunks;            // [data set][chunk]
  std::vector<std::vector<std::uint32_t>> rows_in_set;  // [data set]: rows by element offset

  Impl(Path p, ShardEntry e, const Catalog& c, std::uint64_t chunk,
       std::shared_ptr<ChunkCache> shared)
      : path(std::move(p)),
        entry(std::move(e)),
        catalog(c),
        chunk_bytes(chunk),
        cache(std::move(shared)) {}

  [[noreturn]] void corrupt(const std::string& problem, std::string hint = {}) const {
    raise(ErrorCode::Corrupt, fmt::format("{}: {}", path.native(), problem), std::move(hint));
  }

  void open(Storage& storage) {
    if (storage.kind(path) == EntryKind::Missing) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: the shard of rank {} is missing", path.native(), entry.rank),
            "restore the file from a copy, or use another checkpoint");
    }
    file = storage.open(path);
    MemoryBudget(path.native()).charge(detail::table_memory(entry, chunk_bytes));
    if (const std::uint64_t size = file->size(); size != entry.bytes) {
      corrupt(fmt::format("{}: the file has {} bytes, the manifest says {}",
                          size < entry.bytes ? "truncated" : "too long", size, entry.bytes),
              "the copy may be incomplete: copy the file again, or use another checkpoint");
    }
  }

  static detail::UserBlock user_block(const File& shard) {
    std::vector<std::byte> block(detail::kUserBlockBytes);
    shard.read_at(0, block);
    return detail::decode_user_block(block, shard.path());
  }

  void check_user_block(std::string_view save_id) const {
    if (entry.bytes < detail::kUserBlockBytes)
      corrupt(fmt::format("{} bytes are too few for a shard", entry.bytes));
    const detail::UserBlock header = user_block(*file);
    if (header.save_id != save_id) {
      corrupt(fmt::format("this shard belongs to another save ({}) than the manifest ({})",
                          quote(header.save_id), save_id),
              "files of two checkpoints were mixed: copy the whole folder of one of them again");
    }
    if (header.rank != entry.rank) {
      corrupt(fmt::format("this is the shard of rank {}, the manifest expects rank {}", header.rank,
                          entry.rank),
              "files were renamed or swapped");
    }
  }

  // The chunk tables vouch for what is read from a base; here it must be the file that is meant.
  void open_bases(Storage& storage) {
    for (const BaseFile& base : entry.bases) {
      const Path place = path_of(static_cast<std::uint32_t>(bases.size() + 1));
      if (storage.kind(place) == EntryKind::Missing) {
        corrupt(fmt::format("a part of its payload is in {}, which is missing", place.native()),
                "copy the whole folder of the checkpoint again, or use another checkpoint");
      }
      bases.push_back(storage.open(place));
      if (bases.back()->size() != base.bytes || base.bytes < detail::kUserBlockBytes ||
          user_block(*bases.back()).save_id != base.save_id) {
        corrupt(fmt::format("{} is not the file of save {} with {} bytes that the manifest names",
                            place.native(), base.save_id, base.bytes),
                "copy the whole folder of the checkpoint again, or use another checkpoint");
      }
    }
  }

  Path path_of(std::uint32_t number) const {
    return number == 0 ? path : path.parent_path() / entry.bases.at(number - 1).file;
  }
  const File& file_of(const ChunkRow& row) const {
    return row.file == 0 ? *file : *bases[row.file - 1];
  }

  // The chunk tables say where compressed payload lies, and all bytes but the payload are under one
  // checksum: they are read before it is checked, and nothing but their bounds is believed.
  void read_chunk_tables() {
    for (const DataSetEntry& set : entry.data_sets) {
      if (set.compressed && set.encoded_chunk_bytes(chunk_bytes) > limits::kEncodedChunkBytesMax)
        corrupt(fmt::format("compressed chunks of {} bytes are above the limit of {}", chunk_bytes,
                            limits::kEncodedChunkBytesMax));
      const std::uint64_t count = detail::chunk_count(set.padded_bytes(), chunk_bytes);
      chunks.push_back(detail::decode_chunk_table(table("chunks/" + set.name(), set.chunks_offset,
                                                        count, detail::chunk_row_bytes(set.shared)),
                                                  set.shared));
    }
  }

  void check_tables_digest() const {
    const std::vector<Extent> payload = detail::payload_extents(entry.data_sets, chunks);
    std::uint64_t end = detail::kUserBlockBytes, bytes = 0;
    for (const Extent& extent : payload) {
      if (extent.offset < end) {
        corrupt(fmt::format("{} overlaps what lies before it (byte {})", name_of(extent),
                            extent.offset));
      }
      end = checked_add(extent.offset, extent.bytes, "the end of payload");
      bytes += extent.bytes;
    }
    if (end > entry.bytes)
      corrupt(fmt::format("the data sets end at byte {}, the file at {}", end, entry.bytes));
    if (entry.bytes - bytes > limits::kMetadataBytes)
      corrupt("the tables are larger than the limit");
    if (detail::metadata_crc64(*file, entry.bytes, payload) != entry.metadata_crc64) {
      corrupt(
          "the tables (all bytes outside the payload) do not match the checksum in the manifest",
          "a byte of the file's header or tables changed: use a copy or another checkpoint");
    }
  }

  std::string name_of(const Extent& extent) const {
    for (std::size_t set = 0; set < entry.data_sets.size(); ++set) {
      const DataSetEntry& item = entry.data_sets[set];
      if (!item.compressed && item.offset == extent.offset) return "data set " + item.name();
      const bool is_chunk = std::ranges::any_of(chunks[set], [&](const ChunkRow& row) {
        return row.file == 0 && row.file_offset == extent.offset;
      });
      if (item.compressed && is_chunk) return "a chunk of data set " + item.name();
    }
    return "payload";
  }

  // Bytes [offset, offset + rows * row_bytes), which must lie in the file.
  std::vector<std::byte> table(std::string_view name, std::uint64_t offset, std::uint64_t count,
                               std::uint64_t row_bytes) const {
    const std::uint64_t bytes = checked_mul(count, row_bytes, name);
    if (checked_add(offset, bytes, name) > entry.bytes)
      corrupt(fmt::format("table {} ends beyond the file", name));
    std::vector<std::byte> out(bytes);
    file->read_at(offset, out);
    return out;
  }

  void read_index() {
    const std::vector<std::byte> names = table("names", entry.names_offset, entry.names_bytes, 1);
    const std::vector<std::byte> index =
        table("index", entry.index_offset, entry.index_rows, detail::kIndexRowBytes);
    rows.reserve(entry.index_rows);
    rows_in_set.resize(entry.data_sets.size());
    std::uint64_t names_end = 0;  // of the rows so far
    for (std::uint32_t i = 0; i < entry.index_rows; ++i) {
      IndexRow row = detail::decode_index_row(
          std::span(index).subspan(i * detail::kIndexRowBytes, detail::kIndexRowBytes));
      check_row(i, row, names);
      if (row.name_offset > names_end)
        corrupt(fmt::format("index row {}: there is a hole before its name", i));
      names_end = std::max<std::uint64_t>(names_end, row.name_offset + row.name_bytes);
      if (info(catalog.tensors[row.tensor].dtype).kind == Kind::Float)
        row.stats.count = row.range.size();
      if (row.data_set != kDerivedDataSet) rows_in_set[row.data_set].push_back(i);
      rows.push_back(row);
    }
    if (names_end != names.size()) {
      corrupt(
          fmt::format("the names of the rows fill {} bytes of the name table, the manifest says {}",
                      names_end, names.size()),
          "the manifest is wrong, although its checksum is right: use another checkpoint");
    }
  }

  void check_row(std::uint32_t number, const IndexRow& row,
                 std::span<const std::byte> names) const {
    const auto bad = [&](const std::string& problem) {
      corrupt(fmt::format("index row {}: {}", number, problem));
    };
    if (row.tensor >= catalog.tensors.size())
      bad(fmt::format("tensor number {} of {}", row.tensor, catalog.tensors.size()));
    const TensorInfo& tensor = catalog.tensors[row.tensor];
    if (row.range.empty() || row.range.end > tensor.elements()) {
      bad(fmt::format("elements {} to {} of {}, which has {}", row.range.begin, row.range.end,
                      tensor.label(), tensor.elements()));
    }
    if (checked_add(row.name_offset, row.name_bytes, "a name's end") > names.size())
      bad("the name ends beyond the table");
    const std::string name(reinterpret_cast<const char*>(names.data()) + row.name_offset,
                           row.name_bytes);
    if (name != tensor.fqn + '\0' + tensor.state)
      bad(fmt::format("the shard calls it {}, the manifest {}", quote(name),
                      quote(tensor.label())));
    if (tensor.derived != (row.data_set == kDerivedDataSet))
      bad(fmt::format("{} is {}stored", tensor.label(), tensor.derived ? "" : "not "));
    if (tensor.derived) return;
    if (row.data_set >= entry.data_sets.size())
      bad(fmt::format("data set number {} of {}", row.data_set, entry.data_sets.size()));
    const DataSetEntry& set = entry.data_sets[row.data_set];
    if (set.state != tensor.state || set.dtype != tensor.dtype)
      bad(fmt::format("{} is in data set {}", tensor.label(), set.name()));
    if (checked_add(row.element_offset, row.range.size(), "a fragment's end") > set.elements) {
      bad(fmt::format("{} ends beyond data set {}", tensor.label(), set.name()));
    }
    const std::uint64_t finite_or_not =
        row.stats.nan_count > row.range.size() ? row.range.size() + 1 : row.stats.nan_count;
    if (finite_or_not > row.range.size() || row.stats.inf_count > row.range.size() - finite_or_not)
      bad("more NaN and Inf than elements");
  }

  // Fragments must fill each data set: no overlap, no hole, nothing unaccounted.
  void check_tiling() {
    for (std::size_t set = 0; set < entry.data_sets.size(); ++set) {
      auto& order = rows_in_set[set];
      std::sort(order.begin(), order.end(),
                [&](auto a, auto b) { return rows[a].element_offset < rows[b].element_offset; });
      std::uint64_t next = 0;
      for (const std::uint32_t row : order) {
        if (rows[row].element_offset != next) {
          corrupt(fmt::format(
              "data set {}: {} at element {}, where {} begins", entry.data_sets[set].name(),
              rows[row].element_offset < next ? "fragments overlap" : "there is a hole", next,
              catalog.tensors[rows[row].tensor].label()));
        }
        next += rows[row].range.size();
      }
      if (next != entry.data_sets[set].elements) {
        corrupt(fmt::format("data set {}: fragments fill {} of {} elements",
                            entry.data_sets[set].name(), next, entry.data_sets[set].elements));
      }
    }
  }

  void check_chunk_rows() const {
    for (std::size_t set = 0; set < chunks.size(); ++set) {
      const DataSetEntry& item = entry.data_sets[set];
      for (std::uint64_t i = 0; i < chunks[set].size(); ++i) {
        if (!is_sound(set, i)) {
          corrupt(fmt::format("chunk {} of data set {} is not where version 1 puts it", i,
                              item.name()));
        }
      }
    }
  }
  bool is_sound(std::size_t set, std::uint64_t chunk) const {
    if (!entry.data_sets[set].compressed) return is_sound_contiguous(set, chunk);
    const ChunkRow& row = chunks[set][chunk];
    return row.file == 0 ? is_sound_compressed(set, row) : is_sound_shared(set, chunk);
  }
  bool is_sound_contiguous(std::size_t set, std::uint64_t chunk) const {
    const ChunkRow& row = chunks[set][chunk];
    return row.file_offset == entry.data_sets[set].offset + chunk * chunk_bytes &&
           row.stored_bytes == chunk_length(set, chunk) && row.filter_mask == 0;
  }
  // In a base: as it is compressed there, or as it is where the base is not.
  bool is_sound_shared(std::size_t set, std::uint64_t chunk) const {
    const ChunkRow& row = chunks[set][chunk];
    if (row.file > bases.size()) return false;
    const std::uint64_t end = checked_add(row.file_offset, row.stored_bytes, "a chunk's end");
    if (row.file_offset < detail::kUserBlockBytes || end > entry.bases[row.file - 1].bytes)
      return false;
    return is_sound_compressed(set, row) ||
           (row.filter_mask == detail::kNoFilter && row.file_offset % kPayloadAlign == 0 &&
            row.stored_bytes == chunk_length(set, chunk));
  }
  bool is_sound_compressed(std::size_t set, const ChunkRow& row) const {
    const std::uint64_t whole = encoded_bytes(set);
    if (row.file_offset % kPayloadAlign != 0 || row.stored_bytes % kPayloadAlign != 0) return false;
    return row.filter_mask == detail::kNoFilter
               ? row.stored_bytes == whole
               : row.filter_mask == detail::kBothFilters && row.stored_bytes != 0 &&
                     row.stored_bytes < whole;
  }

  std::uint64_t encoded_bytes(std::size_t set) const {
    return entry.data_sets[set].encoded_chunk_bytes(chunk_bytes);
  }
  /// Of the padded data set, not encoded.
  std::uint64_t chunk_length(std::size_t set, std::uint64_t chunk) const {
    return detail::chunk_size(entry.data_sets[set].padded_bytes(), chunk_bytes, chunk);
  }

  /// Number of the data set's first chunk, over all data sets.
  std::uint64_t first_chunk(std::size_t set) const {
    std::uint64_t number = 0;
    for (std::size_t before = 0; before < set; ++before) number += chunks[before].size();
    return number;
  }

  Damage damage(std::size_t set, std::uint64_t chunk) const {
    const DataSetEntry& item = entry.data_sets[set];
    const ChunkRow& stored = chunks[set][chunk];
    Damage out{first_chunk(set) + chunk, item.name(),         stored.file,
               stored.file_offset,       stored.stored_bytes, {}};
    const std::uint64_t begin = chunk * chunk_bytes / size_of(item.dtype);
    const ElementRange in_set{begin, begin + chunk_length(set, chunk) / size_of(item.dtype)};
    for (const std::uint32_t number : rows_in_set[set]) {
      const IndexRow& row = rows[number];
      const ElementRange common =
          intersect(in_set, {row.element_offset, row.element_offset + row.range.size()});
      if (common.empty()) continue;
      const std::uint64_t first = row.range.begin + (common.begin - row.element_offset);
      out.lost.push_back({row.tensor, {first, first + common.size()}});
    }
    return out;
  }

  [[noreturn]] void raise_damaged(const Damage& bad) const {
    std::string lost;
    for (const Fragment& part : bad.lost) {
      if (lost.size() > 300) {
        lost += ", ...";
        break;
      }
      lost += fmt::format("{}{} elements {} to {}", lost.empty() ? "" : ", ",
                          catalog.tensors[part.tensor].label(), part.range.begin, part.range.end);
    }
    raise(ErrorCode::Corrupt,
          fmt::format("{}: bytes {} to {} (data set {}) do not match their checksum: damaged {}",
                      path_of(bad.file).native(), bad.file_offset, bad.file_offset + bad.bytes,
                      bad.data_set, lost.empty() ? "padding" : lost),
          "use another checkpoint, or a copy of this file");
  }

  /// Reads whole chunks from `chunk` on, as many as fill `out`, and calls visit(chunk, whether it
  /// is sound) for each. Neighbours that lie as they are one behind the other come in one read.
  template <class Visit>
  void visit_chunks(std::size_t set, std::uint64_t chunk, std::span<std::byte> out,
                    const Visit& visit) const {
    while (!out.empty()) {
      const std::uint64_t run = plain_run(set, chunk, out.size());
      if (run == 0) {
        const std::span<std::byte> bytes = out.first(chunk_length(set, chunk));
        visit(chunk, decode(set, chunk, bytes));
        out = out.subspan(bytes.size());
        ++chunk;
        continue;
      }
      file_of(chunks[set][chunk]).read_at(chunks[set][chunk].file_offset, out.first(run));
      for (std::span<std::byte> rest = out.first(run); !rest.empty(); ++chunk) {
        const std::span<std::byte> bytes = rest.first(chunk_length(set, chunk));
        visit(chunk, crc64(bytes) == chunks[set][chunk].crc64);
        rest = rest.subspan(bytes.size());
      }
      out = out.subspan(run);
    }
  }

  /// How many of `bytes` bytes from `chunk` on lie in one piece and as they are; whole chunks.
  std::uint64_t plain_run(std::size_t set, std::uint64_t chunk, std::uint64_t bytes) const {
    const bool compressed = entry.data_sets[set].compressed;
    const ChunkRow& first = chunks[set][chunk];
    std::uint64_t run = 0;
    for (; run < bytes; ++chunk) {
      const ChunkRow& row = chunks[set][chunk];
      const bool is_plain = (!compressed || row.filter_mask == detail::kNoFilter) &&
                            row.stored_bytes == chunk_length(set, chunk);
      if (!is_plain || row.file != first.file || row.file_offset != first.file_offset + run) break;
      run += row.stored_bytes;
    }
    return run;
  }

  void read_chunks(std::size_t set, std::uint64_t first, std::span<std::byte> out) const {
    visit_chunks(set, first, out, [&](std::uint64_t chunk, bool is_sound) {
      if (!is_sound) raise_damaged(damage(set, chunk));
    });
  }

  // One chunk that is compressed, or as it is with what lies beyond the data set's end. False when
  // the bytes do not match their checksum or are no such chunk.
  bool decode(std::size_t set, std::uint64_t chunk, std::span<std::byte> out) const {
    const ChunkRow& row = chunks[set][chunk];
    const detail::BorrowedCodec codec;
    const std::span<std::byte> stored = codec->stored(row.stored_bytes);
    file_of(row).read_at(row.file_offset, stored);
    if (crc64(stored) != row.crc64) return false;
    if (row.filter_mask == detail::kBothFilters) {
      return codec->decode(stored, encoded_bytes(set), size_of(entry.data_sets[set].dtype), out);
    }
    std::ranges::copy(stored.first(out.size()), out.begin());
    return true;
  }

  /// Reads bytes from byte `at` of a data set on into `out`, some or all, and returns how many.
  std::uint64_t read_some(std::size_t set, std::uint64_t at, std::span<std::byte> out) const {
    const std::uint64_t chunk = at / chunk_bytes, inside = at % chunk_bytes;
    if (const std::uint64_t whole = inside == 0 ? whole_chunks(set, chunk, out.size()) : 0) {
      read_chunks(set, chunk, out.first(whole));
      return whole;
    }
    const std::uint64_t number = first_chunk(set) + chunk;
    if (const auto held = cache->find(this, number)) return copy_part(*held, inside, out);
    if (has_windows(set)) return read_window(set, chunk, inside, out);
    const auto bytes = cache->memory(chunk_length(set, chunk));
    read_chunks(set, chunk, *bytes);
    cache->keep(this, number, bytes);
    return copy_part(*bytes, inside, out);
  }

  /// Of `bytes` bytes from `chunk` on, those that are read straight to their place: whole chunks.
  /// Where a part of a chunk comes behind them, the last ones are left to be read with it.
  std::uint64_t whole_chunks(std::size_t set, std::uint64_t chunk, std::uint64_t bytes) const {
    if (chunk * chunk_bytes + bytes == entry.data_sets[set].padded_bytes()) return bytes;
    const std::uint64_t whole = bytes / chunk_bytes * chunk_bytes;
    if (whole == bytes || !has_windows(set)) return whole;
    return bytes / kBlockBytes * kBlockBytes / chunk_bytes * chunk_bytes;
  }

  /// Reading compressed chunks takes blocks, of which a thread must have one at most.
  bool has_windows(std::size_t set) const {
    return !entry.data_sets[set].compressed && chunk_bytes <= kBlockBytes;
  }

  /// As read_some(), through a block of memory: a chunk of which a part is wanted comes in one
  /// request with its neighbours. The rest of it will be wanted soon, so the cache keeps it.
  std::uint64_t read_window(std::size_t set, std::uint64_t first, std::uint64_t inside,
                            std::span<std::byte> out) const {
    const BlockPool::Block block = block_pool().take(io_options().read_buffer_bytes);
    std::uint64_t bytes = 0, end = first;
    while (bytes < inside + out.size() && bytes + chunk_length(set, end) <= kBlockBytes)
      bytes += chunk_length(set, end++);
    const std::span<std::byte> window = block.bytes().first(bytes);
    read_chunks(set, first, window);
    const std::uint64_t count = copy_part(window, inside, out);
    if (inside != 0) keep(set, first, window.first(chunk_length(set, first)));
    if (inside + count < bytes && (inside == 0 || end - first > 1))
      keep(set, end - 1, window.last(chunk_length(set, end - 1)));
    return count;
  }

  void keep(std::size_t set, std::uint64_t chunk, std::span<const std::byte> bytes) const {
    const auto memory = cache->memory(bytes.size());
    std::ranges::copy(bytes, memory->begin());
    cache->keep(this, first_chunk(set) + chunk, memory);
  }
};

ShardReader::ShardReader(Storage& storage, Path path, ShardEntry entry, std::string_view save_id,
                         const Catalog& catalog, std::uint64_t chunk_bytes,
                         std::shared_ptr<ChunkCache> cache)
    : impl_(std::make_unique<Impl>(std::move(path), std::move(entry), catalog, chunk_bytes,
                                   cache ? std::move(cache) : make_chunk_cache())) {
  impl_->open(storage);
  impl_->check_user_block(save_id);
  impl_->open_bases(storage);
  impl_->read_chunk_tables();
  impl_->check_tables_digest();
  impl_->check_chunk_rows();
  impl_->read_index();
  impl_->check_tiling();
}

ShardReader::~ShardReader() = default;

const ShardEntry& ShardReader::entry() const { return impl_->entry; }
const std::vector<IndexRow>& ShardReader::rows() const { return impl_->rows; }
const Path& ShardReader::path() const { return impl_->path; }
std::uint64_t ShardReader::chunk_bytes() const { return impl_->chunk_bytes; }
Path ShardReader::path_of(std::uint32_t file) const { return impl_->path_of(file); }
const std::vector<ChunkRow>& ShardReader::chunks(std::size_t data_set) const {
  return impl_->chunks.at(data_set);
}

void ShardReader::read(std::size_t row_number, ElementRange range, std::span<std::byte> out) const {
  const Impl& self = *impl_;
  const IndexRow& row = self.rows.at(row_number);
  if (row.data_set == kDerivedDataSet || !row.range.contains(range)) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("elements {} to {} are not in row {} of {}", range.begin, range.end,
                      row_number, self.path.native()));
  }
  const std::uint64_t item_bytes = size_of(self.entry.data_sets[row.data_set].dtype);
  std::uint64_t at =
      (row.element_offset + (range.begin - row.range.begin)) * item_bytes;  // in the data set
  if (out.size() != range.size() * item_bytes)
    raise(ErrorCode::InvalidArgument, "the buffer does not have the range's size");
  while (!out.empty()) {
    const std::uint64_t count = self.read_some(row.data_set, at, out);
    out = out.subspan(count);
    at += count;
  }
}

std::uint64_t ShardReader::chunk_start(std::size_t row_number, std::uint64_t element) const {
  const IndexRow& row = impl_->rows.at(row_number);
  if (row.data_set == kDerivedDataSet || !row.range.contains({element, element})) return element;
  const std::uint64_t width = size_of(impl_->entry.data_sets[row.data_set].dtype);
  const std::uint64_t per_chunk = impl_->chunk_bytes / width;
  const std::uint64_t inside = element - row.range.begin;
  return row.range.begin + inside - std::min(inside, (row.element_offset + inside) % per_chunk);
}

std::uint64_t ShardReader::stored_payload_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& set : impl_->chunks)
    for (const ChunkRow& row : set) bytes += row.stored_bytes;
  return bytes;
}

std::uint64_t ShardReader::shared_payload_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& set : impl_->chunks)
    for (const ChunkRow& row : set) bytes += row.file != 0 ? row.stored_bytes : 0;
  return bytes;
}

std::uint64_t ShardReader::chunk_count() const {
  std::uint64_t count = 0;
  for (const auto& set : impl_->chunks) count += set.size();
  return count;
}

std::vector<ShardReader::Damage> ShardReader::check_chunks(std::uint64_t first, std::uint64_t count,
                                                           std::span<std::byte> buffer) const {
  const Impl& self = *impl_;
  std::size_t set = 0;
  for (; set < self.chunks.size() && first >= self.chunks[set].size(); ++set)
    first -= self.chunks[set].size();
  if (set == self.chunks.size() || count == 0 || count > self.chunks[set].size() - first) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} chunks from chunk {} on are not in one data set of {}", count, first,
                      self.path.native()));
  }
  const std::uint64_t last = first + count - 1;
  buffer = buffer.first((count - 1) * self.chunk_bytes + self.chunk_length(set, last));
  std::vector<Damage> damages;
  self.visit_chunks(set, first, buffer, [&](std::uint64_t chunk, bool is_sound) {
    if (!is_sound) damages.push_back(self.damage(set, chunk));
  });
  return damages;
}

}  // namespace unishard
