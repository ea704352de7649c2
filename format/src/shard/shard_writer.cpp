// clang-format off
// Writing a shard:
//  1. The sizes of all data sets follow from the fragments. HDF5 creates the container with every
//     data set allocated. Compressed or shared chunks are placed one by one as they are written.
//  2. write() cuts its range at the ends of chunks. Each piece lies in one fragment and one chunk.
//     It is digested and measured once, and its result is kept as a record. The bytes are written
//     to their offset. What a piece of a box contributes to its tensor's digest is added to the sum
//     of its fragment at once, because the order does not matter.
//  3. finish() sorts the records, which proves that every element was written once, and combines
//     their digests (CRC-64 combines): by fragment for the index, by chunk for the chunk tables.
//  4. finish() writes the tables and the user block. The digest of all bytes outside the payload is
//     computed from the file as read back.
// clang-format on
#include "unishard/format/shard_writer.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/fragment_digest.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/version.hpp"

#include "shard/base_links.hpp"
#include "shard/chunk_geometry.hpp"
#include "shard/chunked_payload.hpp"
#include "shard/container.hpp"
#include "shard/planned_fragments.hpp"
#include "shard/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

namespace unishard {

namespace {

// Elements that were written: within one fragment and, if stored, within one chunk.
struct Record {
  std::uint32_t fragment = 0;
  ElementRange own;  // own elements of the fragment
  std::uint64_t crc64 = 0;
  Stats stats;
};

/// `auto` does not compress a smaller shard: measuring would cost more than compression can save.
constexpr std::uint64_t kAutoBytesMin = std::uint64_t{64} << 20;

void write_table(File& file, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!bytes.empty()) file.write_at(offset, bytes);
}

}  // namespace

struct ShardWriter::Impl {
  Storage& storage;
  Path path;
  std::string save_id;
  const Catalog& catalog;
  const std::uint64_t chunk_bytes;
  Compression compression;
  const detail::PlannedFragments fragments;
  std::vector<std::uint64_t> contributions;  // one per fragment; of boxes only
  ShardEntry entry;
  std::unique_ptr<File> file;
  std::unique_ptr<detail::Container> container;
  std::unique_ptr<detail::BaseLinks> base;          // null when nothing is shared
  std::unique_ptr<detail::ChunkedPayload> chunked;  // null when payload is contiguous
  std::mutex mutex;
  std::vector<Record> records;
  bool created = false;
  bool finished = false;

  Impl(Storage& s, Path p, std::string id, const Catalog& c, std::uint32_t rank,
       std::vector<Fragment> f, const ShardOptions& options)
      : storage(s),
        path(std::move(p)),
        save_id(std::move(id)),
        catalog(c),
        chunk_bytes(options.chunk_bytes),
        compression(options.compression),
        fragments(catalog, std::move(f), path),
        contributions(fragments.size()) {
    entry.file = path.filename().native();
    entry.rank = rank;
    entry.data_sets = fragments.data_sets();
  }

  // Removes an unfinished shard. A file that cannot be removed stays in its staging folder, which
  // is removed later.
  ~Impl() {
    if (finished || !created) return;
    try {
      chunked.reset();
      container.reset();
      file.reset();
      base.reset();
      if (storage.kind(path) != EntryKind::Missing) storage.remove_file(path);
    } catch (const std::exception&) {
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool is_chunked() const { return base || compression.mode != Compression::Mode::None; }

  // A base of which no file can be linked is ignored.
  void link(std::shared_ptr<const ShardBase> from) {
    if (!from || from->holders().empty()) return;
    if (from->chunk_bytes() != chunk_bytes) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("{}: chunks of {} bytes cannot be shared with a base's of {}",
                        path.native(), chunk_bytes, from->chunk_bytes()));
    }
    base = std::make_unique<detail::BaseLinks>(storage, path.parent_path(), std::move(from));
    if (base->is_empty()) base.reset();
  }

  // Creates the file and decides whether to compress: `auto` measures the disk first.
  void create_file() {
    file = storage.create(path);
    created = true;
    if (compression.mode == Compression::Mode::Auto && !may_pay()) compression = {};
    for (DataSetEntry& item : entry.data_sets) {
      item.compressed = is_chunked();
      item.shared = base != nullptr;
    }
  }

  bool may_pay() const {
    std::uint64_t payload = 0;
    for (const DataSetEntry& item : entry.data_sets) payload += item.padded_bytes();
    return payload >= kAutoBytesMin && detail::compression_may_pay(*file, compression.level);
  }

  void create_container() {
    detail::ContainerSpec spec;
    spec.save_id = save_id;
    spec.rank = entry.rank;
    spec.world_size = catalog.world_size;
    spec.chunk_bytes = chunk_bytes;
    spec.shares = base != nullptr;
    spec.index_rows = entry.index_rows = fragments.size();
    spec.names_bytes = entry.names_bytes = fragments.names().size();
    spec.boxes_bytes = entry.boxes_bytes = fragments.boxes_bytes();
    for (const DataSetEntry& item : entry.data_sets) {
      const std::uint64_t bytes = item.padded_bytes(), width = size_of(item.dtype);
      const detail::ChunkGeometry geometry(item, chunk_bytes);
      spec.data_sets.push_back({item.name(), item.state, item.dtype, item.elements, bytes / width,
                                geometry.count(),
                                item.compressed ? geometry.encoded_length() / width : 0});
    }
    container = std::make_unique<detail::Container>(*file, spec);
    const detail::ContainerOffsets& offsets = container->offsets();
    entry.index_offset = offsets.index;
    entry.names_offset = offsets.names;
    entry.boxes_offset = offsets.boxes;
    for (std::size_t i = 0; i < entry.data_sets.size(); ++i) {
      entry.data_sets[i].offset = offsets.data[i];
      entry.data_sets[i].chunks_offset = offsets.chunks[i];
    }
    if (is_chunked()) {
      reserve_for_chunks(spec);
      chunked = std::make_unique<detail::ChunkedPayload>(*file, *container, entry.data_sets,
                                                         chunk_bytes, compression, base.get());
    } else {
      container->close();
      file->reserve(container->end());
    }
  }

  // Reserves the space that is needed if no chunk shrinks or is shared; finish() truncates the
  // file. HDF5's index takes about 20 bytes per chunk. A shard with a base goes on without the
  // reservation when there is too little free space.
  void reserve_for_chunks(const detail::ContainerSpec& spec) {
    std::uint64_t bytes = container->end() + (std::uint64_t{1} << 20);
    for (std::size_t i = 0; i < entry.data_sets.size(); ++i) {
      const std::uint64_t chunk =
          detail::ChunkGeometry(entry.data_sets[i], chunk_bytes).encoded_length();
      bytes = checked_add(bytes, checked_mul(spec.data_sets[i].chunks, chunk + 64, "a shard"),
                          "a shard");
    }
    try {
      file->reserve(bytes);
    } catch (const Error& error) {
      if (!base || error.code() != ErrorCode::NoSpace) throw;
    }
  }

  /// Cuts written elements at the ends of chunks: visit(own elements, their bytes).
  template <class Visit>
  void each_piece(std::size_t fragment, ElementRange own, std::span<const std::byte> bytes,
                  const Visit& visit) const {
    const std::uint64_t width = size_of(fragments.tensor(fragment).dtype),
                        per_chunk = chunk_bytes / width;
    while (!own.empty()) {
      const std::uint64_t element = fragments.row(fragment).element_offset + own.begin;
      const std::uint64_t count = std::min(own.size(), per_chunk - element % per_chunk);
      visit(ElementRange{own.begin, own.begin + count}, bytes.first(count * width));
      bytes = bytes.subspan(count * width);
      own.begin += count;
    }
  }

  /// Returns the digest of a piece. `contribution` receives that of a piece of a box.
  std::uint64_t digest(std::size_t fragment, ElementRange own, std::span<const std::byte> bytes,
                       std::uint64_t& contribution) const {
    if (!fragments.is_box(fragment)) return crc64(bytes);
    const TensorInfo& tensor = fragments.tensor(fragment);
    const FragmentDigest digest = digest_elements(fragments.map(fragment), tensor.elements(),
                                                  size_of(tensor.dtype), own, bytes);
    contribution ^= digest.contribution;
    return digest.crc64;
  }

  // Stores bytes that lie in one chunk. Returns true when they completed a chunk that the base does
  // not hold.
  bool store_piece(std::size_t fragment, ElementRange own, std::span<const std::byte> bytes,
                   std::uint64_t crc) {
    const IndexRow row = fragments.row(fragment);
    if (row.data_set == kDerivedDataSet) return false;
    const std::uint64_t at =
        (row.element_offset + own.begin) * size_of(fragments.tensor(fragment).dtype);
    if (chunked) return chunked->write(row.data_set, at, bytes, crc);
    file->write_at(entry.data_sets[row.data_set].offset + at, bytes);
    return true;
  }

  // Digests and measures each piece while it is in the processor's cache. The statistics of a
  // fragment that the base holds unchanged are copied from the base; that it is unchanged is known
  // only after its last byte.
  void write_run(std::size_t fragment, ElementRange own, std::span<const std::byte> bytes) {
    const TensorInfo& tensor = fragments.tensor(fragment);
    const ShardBase::Known* const known = base && own.size() == fragments.map(fragment).elements()
                                              ? base->find(tensor, fragments.stored(fragment))
                                              : nullptr;
    std::vector<Record> run;
    std::uint64_t whole = 0, contribution = 0;
    std::size_t unmeasured = 0;
    bool differs = known == nullptr;
    each_piece(fragment, own, bytes, [&](ElementRange part, std::span<const std::byte> piece) {
      Record record{static_cast<std::uint32_t>(fragment),
                    part,
                    digest(fragment, part, piece, contribution),
                    {}};
      if (store_piece(fragment, part, piece, record.crc64)) differs = true;
      whole = crc64_combine(whole, record.crc64, piece.size());
      if (differs) {
        record.stats = measure(tensor.dtype, piece);
      } else {
        ++unmeasured;
      }
      run.push_back(record);
    });
    if (known != nullptr && whole == known->crc64) {
      for (Record& record : run) record.stats = {};
      run.front().stats = known->stats;
    } else if (unmeasured > 0) {
      auto record = run.begin();
      each_piece(fragment, own, bytes, [&](ElementRange, std::span<const std::byte> piece) {
        if (unmeasured > 0) record++->stats = measure(tensor.dtype, piece), --unmeasured;
      });
    }
    const std::scoped_lock lock(mutex);
    records.insert(records.end(), run.begin(), run.end());
    contributions[fragment] ^= contribution;
  }

  // Sorts the records and checks that they cover each fragment exactly once.
  void check_complete() {
    std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) {
      return a.fragment != b.fragment ? a.fragment < b.fragment : a.own < b.own;
    });
    std::size_t at = 0;
    for (std::size_t i = 0; i < fragments.size(); ++i) {
      std::uint64_t next = 0;
      for (; at < records.size() && records[at].fragment == i; ++at) {
        if (records[at].own.begin != next) incomplete(i, next, records[at].own.begin);
        next = records[at].own.end;
      }
      if (next != fragments.map(i).elements()) incomplete(i, next, fragments.map(i).elements());
    }
  }

  [[noreturn]] void incomplete(std::size_t fragment, std::uint64_t expected,
                               std::uint64_t found) const {
    const std::uint64_t first = fragments.first_number(fragment);
    const Fragment& part = fragments.all()[fragment];
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: {}: elements {} to {}{} were {}", path.native(),
                      fragments.tensor(fragment).label(), first + std::min(expected, found),
                      first + std::max(expected, found),
                      part.box ? " of the box " + to_text(*part.box) : "",
                      found > expected ? "not written" : "written twice"));
  }

  std::vector<std::byte> index_table() const {
    std::vector<std::byte> table(fragments.size() * kIndexRowBytes);
    std::size_t at = 0;
    for (std::size_t i = 0; i < fragments.size(); ++i) {
      IndexRow row = fragments.row(i);
      const std::uint64_t item_bytes = size_of(fragments.tensor(i).dtype);
      for (; at < records.size() && records[at].fragment == i; ++at) {
        row.crc64 =
            crc64_combine(row.crc64, records[at].crc64, records[at].own.size() * item_bytes);
        row.stats.append(records[at].stats);
      }
      detail::encode_index_row(row, std::span(table).subspan(i * kIndexRowBytes, kIndexRowBytes));
    }
    return table;
  }

  std::vector<ChunkRow> chunk_rows(std::uint32_t set) const {
    if (chunked) return chunked->rows(set);
    const DataSetEntry& item = entry.data_sets[set];
    const std::uint64_t stored = item.padded_bytes(), item_bytes = size_of(item.dtype);
    const detail::ChunkGeometry geometry(item, chunk_bytes);
    std::vector<ChunkRow> rows(geometry.count());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto size = static_cast<std::uint32_t>(geometry.length(i));
      rows[i] = {item.offset + geometry.begin(i), size, 0, 0};
    }
    // The data set's fragments are in file order, so their records are too.
    std::uint64_t at = 0;
    for (const Record& record : records) {
      if (fragments.row(record.fragment).data_set != set) continue;
      const std::uint64_t bytes = record.own.size() * item_bytes;
      std::uint64_t& digest = rows[geometry.at(at)].crc64;
      digest = crc64_combine(digest, record.crc64, bytes);
      at += bytes;
    }
    if (at < stored)
      rows.back().crc64 = crc64_combine(rows.back().crc64, crc64_zeros(stored - at), stored - at);
    return rows;
  }

  std::vector<std::vector<ChunkRow>> chunk_tables() const {
    std::vector<std::vector<ChunkRow>> tables;
    for (std::uint32_t set = 0; set < entry.data_sets.size(); ++set)
      tables.push_back(chunk_rows(set));
    return tables;
  }

  // Maps the chunks that lie in other files into HDF5's virtual data sets.
  void map_chunks(const std::vector<std::vector<ChunkRow>>& tables) {
    for (std::size_t set = 0; set < tables.size(); ++set) {
      std::vector<detail::ChunkRun> runs;
      for (std::uint64_t chunk = 0; chunk < tables[set].size(); ++chunk) {
        const std::uint32_t number = tables[set][chunk].file;
        if (chunk > 0 && tables[set][chunk - 1].file == number) {
          ++runs.back().count;
        } else if (number == 0) {
          runs.push_back({chunk, 1, ".", "fresh"});
        } else {
          runs.push_back({chunk, 1, entry.bases[number - 1].file, entry.bases[number - 1].group});
        }
      }
      container->map(set, runs);
    }
  }

  // Closes the container and truncates the file to its final size.
  void close_container() {
    if (chunked) {
      container->close();
      file->resize(container->end());
    }
    entry.bytes = container->end();
    if (file->size() == entry.bytes) return;
    raise(ErrorCode::Internal, fmt::format("{}: the file has {} bytes instead of the planned {}",
                                           path.native(), file->size(), entry.bytes));
  }
};

ShardWriter::ShardWriter(Storage& storage, Path path, std::string save_id, const Catalog& catalog,
                         std::uint32_t rank, std::vector<Fragment> fragments, ShardOptions options)
    : impl_(std::make_unique<Impl>(storage, std::move(path), std::move(save_id), catalog, rank,
                                   std::move(fragments), options)) {
  impl_->link(std::move(options.base));
  impl_->create_file();
  impl_->create_container();
}

ShardWriter::~ShardWriter() = default;

const std::vector<Fragment>& ShardWriter::fragments() const { return impl_->fragments.all(); }

void ShardWriter::write(std::size_t fragment, ElementRange range,
                        std::span<const std::byte> bytes) {
  const detail::PlannedFragments& fragments = impl_->fragments;
  const TensorInfo& tensor = fragments.tensor(fragment);
  const std::uint64_t item_bytes = size_of(tensor.dtype), first = fragments.first_number(fragment);
  const ElementRange allowed{first, first + fragments.map(fragment).elements()};
  if (range.begin > range.end || !allowed.contains(range) ||
      bytes.size() != range.size() * item_bytes) {
    raise(
        ErrorCode::InvalidArgument,
        fmt::format("{}: elements {} to {} in {} bytes are not a part of the fragment {} to {}{}",
                    tensor.label(), range.begin, range.end, bytes.size(), allowed.begin,
                    allowed.end, fragments.all()[fragment].box ? ", counted within its box" : ""));
  }
  const ElementRange own{range.begin - first, range.end - first};
  if (!own.empty()) impl_->write_run(fragment, own, bytes);
}

ShardEntry ShardWriter::finish() {
  Impl& self = *impl_;
  self.check_complete();
  std::vector<std::vector<ChunkRow>> tables = self.chunk_tables();
  if (self.base) {
    self.entry.bases = self.base->keep(tables);
    self.map_chunks(tables);
  }
  self.close_container();
  write_table(*self.file, self.entry.index_offset, self.index_table());
  write_table(*self.file, self.entry.names_offset,
              std::as_bytes(std::span(self.fragments.names())));
  write_table(*self.file, self.entry.boxes_offset, self.fragments.box_table(self.contributions));
  for (std::size_t set = 0; set < tables.size(); ++set) {
    const DataSetEntry& item = self.entry.data_sets[set];
    write_table(*self.file, item.chunks_offset,
                detail::encode_chunk_table(tables[set], item.shared));
  }
  const std::uint32_t features = (self.is_chunked() ? kZstdFeatureBit : 0) |
                                 (self.base ? kSharedFeatureBit : 0) |
                                 (self.entry.boxes_bytes != 0 ? kBoxesFeatureBit : 0);
  self.file->write_at(0, detail::encode_user_block({kFormatVersion, features, self.save_id,
                                                    self.entry.rank, self.catalog.world_size}));
  self.entry.metadata_crc64 = detail::metadata_crc64(
      *self.file, self.entry.bytes, detail::payload_extents(self.entry.data_sets, tables));
  self.file->sync();
  self.file->close();
  self.finished = true;
  return self.entry;
}

}  // namespace unishard
