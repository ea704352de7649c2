#include "unishard/format/checked.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/shard.hpp"

#include "shard/chunk_cache.hpp"
#include "shard/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_map>

namespace unishard {

std::shared_ptr<ChunkCache> make_chunk_cache(std::uint64_t capacity_bytes) {
  return std::make_shared<ChunkCache>(capacity_bytes);
}

struct ShardReader::Impl {
  Path path;
  ShardEntry entry;
  const Catalog& catalog;
  std::uint64_t chunk_bytes;
  std::shared_ptr<ChunkCache> cache;
  std::unique_ptr<File> file;
  std::vector<IndexRow> rows;
  std::vector<std::vector<std::uint64_t>> digests;      // [data set][chunk]
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
    if (const std::uint64_t size = file->size(); size != entry.bytes) {
      corrupt(fmt::format("{}: the file has {} bytes, the manifest says {}",
                          size < entry.bytes ? "truncated" : "too long", size, entry.bytes),
              "the copy may be incomplete: copy the file again, or use another checkpoint");
    }
  }

  void check_user_block(std::string_view save_id) const {
    if (entry.bytes < detail::kUserBlockBytes)
      corrupt(fmt::format("{} bytes are too few for a shard", entry.bytes));
    std::vector<std::byte> block(detail::kUserBlockBytes);
    file->read_at(0, block);
    const detail::UserBlock header = detail::decode_user_block(block, path);
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

  void check_tables_digest() const {
    std::vector<DataSetEntry> by_offset = entry.data_sets;
    std::sort(by_offset.begin(), by_offset.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    std::uint64_t end = detail::kUserBlockBytes;
    for (const DataSetEntry& item : by_offset) {
      if (item.offset < end)
        corrupt(fmt::format("data set {} overlaps what lies before it (byte {})", item.name(),
                            item.offset));
      end = checked_add(item.offset, item.stored_bytes(), "a data set's end");
    }
    if (end > entry.bytes)
      corrupt(fmt::format("the data sets end at byte {}, the file at {}", end, entry.bytes));
    if (entry.bytes - payload_bytes() > limits::kMetadataBytes)
      corrupt("the tables are larger than the limit");
    if (detail::metadata_crc64(*file, entry.bytes, by_offset) != entry.metadata_crc64) {
      corrupt(
          "the tables (all bytes outside the payload) do not match the checksum in the manifest",
          "a byte of the file's header or tables changed: use a copy or another checkpoint");
    }
  }

  std::uint64_t payload_bytes() const {
    std::uint64_t bytes = 0;
    for (const DataSetEntry& item : entry.data_sets) bytes += item.stored_bytes();
    return bytes;
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
    for (std::uint32_t i = 0; i < entry.index_rows; ++i) {
      IndexRow row = detail::decode_index_row(
          std::span(index).subspan(i * detail::kIndexRowBytes, detail::kIndexRowBytes));
      check_row(i, row, names);
      if (info(catalog.tensors[row.tensor].dtype).kind == Kind::Float)
        row.stats.count = row.range.size();
      if (row.data_set != kDerivedDataSet) rows_in_set[row.data_set].push_back(i);
      rows.push_back(row);
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

  void read_chunk_tables() {
    for (const DataSetEntry& set : entry.data_sets) {
      const std::uint64_t stored = set.stored_bytes(),
                          count = detail::chunk_count(stored, chunk_bytes);
      const auto bytes =
          table("chunks/" + set.name(), set.chunks_offset, count, detail::kChunkRowBytes);
      auto& digest = digests.emplace_back();
      for (std::uint64_t i = 0; i < count; ++i) {
        const auto row = detail::decode_chunk_row(
            std::span(bytes).subspan(i * detail::kChunkRowBytes, detail::kChunkRowBytes));
        if (row.file_offset != set.offset + i * chunk_bytes ||
            row.stored_bytes != detail::chunk_size(stored, chunk_bytes, i) ||
            row.filter_mask != 0) {
          corrupt(
              fmt::format("chunk {} of data set {} is not where version 1 puts it", i, set.name()));
        }
        digest.push_back(row.crc64);
      }
    }
  }

  std::uint64_t chunk_offset(std::size_t set, std::uint64_t chunk) const {
    return entry.data_sets[set].offset + chunk * chunk_bytes;
  }
  std::uint64_t chunk_length(std::size_t set, std::uint64_t chunk) const {
    return detail::chunk_size(entry.data_sets[set].stored_bytes(), chunk_bytes, chunk);
  }

  Damage damage(std::size_t set, std::uint64_t chunk) const {
    const DataSetEntry& item = entry.data_sets[set];
    Damage out{item.name(), chunk_offset(set, chunk), chunk_length(set, chunk), {}};
    const std::uint64_t begin = chunk * chunk_bytes / size_of(item.dtype);
    const ElementRange in_set{begin, begin + out.bytes / size_of(item.dtype)};
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
    corrupt(fmt::format("bytes {} to {} (data set {}) do not match their checksum: damaged {}",
                        bad.file_offset, bad.file_offset + bad.bytes, bad.data_set,
                        lost.empty() ? "padding" : lost),
            "use another checkpoint, or a copy of this file");
  }

  // Whole chunks from `chunk` on: as many as fill `out`, in one read.
  void read_chunks(std::size_t set, std::uint64_t chunk, std::span<std::byte> out) const {
    file->read_at(chunk_offset(set, chunk), out);
    for (; !out.empty(); ++chunk) {
      const std::uint64_t length = chunk_length(set, chunk);
      if (crc64(out.first(length)) != digests[set][chunk]) raise_damaged(damage(set, chunk));
      out = out.subspan(length);
    }
  }

  ChunkCache::Bytes cached_chunk(std::size_t set, std::uint64_t chunk) const {
    if (auto held = cache->find(this, chunk_offset(set, chunk))) return held;
    auto bytes = cache->memory(chunk_length(set, chunk));
    read_chunks(set, chunk, *bytes);
    cache->keep(this, chunk_offset(set, chunk), bytes);
    return bytes;
  }
};

ShardReader::ShardReader(Storage& storage, Path path, ShardEntry entry, std::string_view save_id,
                         const Catalog& catalog, std::uint64_t chunk_bytes,
                         std::shared_ptr<ChunkCache> cache)
    : impl_(std::make_unique<Impl>(std::move(path), std::move(entry), catalog, chunk_bytes,
                                   cache ? std::move(cache) : make_chunk_cache())) {
  impl_->open(storage);
  impl_->check_user_block(save_id);
  impl_->check_tables_digest();
  impl_->read_index();
  impl_->check_tiling();
  impl_->read_chunk_tables();
}

ShardReader::~ShardReader() = default;

const ShardEntry& ShardReader::entry() const { return impl_->entry; }
const std::vector<IndexRow>& ShardReader::rows() const { return impl_->rows; }
const Path& ShardReader::path() const { return impl_->path; }
std::uint64_t ShardReader::chunk_bytes() const { return impl_->chunk_bytes; }

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
    const std::uint64_t chunk = at / self.chunk_bytes, inside = at % self.chunk_bytes;
    const std::uint64_t length = self.chunk_length(row.data_set, chunk);
    std::uint64_t count = std::min<std::uint64_t>(out.size(), length - inside);
    if (count == length) {
      count = std::max(count, out.size() / self.chunk_bytes * self.chunk_bytes);
      self.read_chunks(row.data_set, chunk, out.first(count));
    } else {
      const auto bytes = self.cached_chunk(row.data_set, chunk);
      std::memcpy(out.data(), bytes->data() + inside, count);
    }
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

std::uint64_t ShardReader::chunk_count() const {
  std::uint64_t count = 0;
  for (const auto& set : impl_->digests) count += set.size();
  return count;
}

std::vector<ShardReader::Damage> ShardReader::check_chunks(std::uint64_t first, std::uint64_t count,
                                                           std::span<std::byte> buffer) const {
  const Impl& self = *impl_;
  std::size_t set = 0;
  for (; set < self.digests.size() && first >= self.digests[set].size(); ++set)
    first -= self.digests[set].size();
  if (set == self.digests.size() || count == 0 || count > self.digests[set].size() - first) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} chunks from chunk {} on are not in one data set of {}", count, first,
                      self.path.native()));
  }
  const std::uint64_t last = first + count - 1;
  buffer = buffer.first((count - 1) * self.chunk_bytes + self.chunk_length(set, last));
  self.file->read_at(self.chunk_offset(set, first), buffer);
  std::vector<Damage> damages;
  for (std::uint64_t chunk = first; chunk <= last; ++chunk) {
    const auto bytes =
        buffer.subspan((chunk - first) * self.chunk_bytes, self.chunk_length(set, chunk));
    if (crc64(bytes) != self.digests[set][chunk]) damages.push_back(self.damage(set, chunk));
  }
  return damages;
}

}  // namespace unishard
