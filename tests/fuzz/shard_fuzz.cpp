// A native shard: the user block and the tables, and the manifest's entry for it. The input is a
// list of edits of a sound shard; its checksum stops almost every one, so it is put right first.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/coverage.hpp"
#include "unishard/format/shard_reader.hpp"

#include "fuzz.hpp"
#include "make_checkpoint.hpp"
#include "memory_storage.hpp"
#include "shard/chunk_geometry.hpp"
#include "shard/tables.hpp"
#include "temp_dir.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

namespace {

using namespace unishard;

struct Sound {
  test::MemoryStorage storage;
  Manifest manifest;
  Path shard;
  std::vector<std::size_t> editable;  ///< file offsets of the user block and the tables

  Sound(const Compression& compression, bool shares, bool boxes) {
    const test::TempDir temp;
    test::CheckpointSpec spec{
        .world_size = 2, .stage = 2, .bf16 = true, .compression = compression, .boxes = boxes};
    Path tag = test::write_example(temp.path(), spec);
    if (shares) {
      spec.base = std::exchange(tag, {});
      spec.tag = "next";
      spec.changed = "wte.weight";
      tag = test::write_example(temp.path(), spec);
    }
    const CheckpointReader reader(posix_storage(), tag);
    manifest = reader.manifest();
    shard = reader.shards().front()->path();
    storage.copy_from_disk(tag);
    const ShardEntry& entry = manifest.shards.front();
    add(0, detail::kUserBlockBytes);
    add(entry.index_offset, entry.index_rows * kIndexRowBytes);
    add(entry.names_offset, entry.names_bytes);
    add(entry.boxes_offset, entry.boxes_bytes);
    for (const DataSetEntry& set : entry.data_sets) {
      const auto chunks = detail::ChunkGeometry(set, manifest.chunk_bytes).count();
      add(set.chunks_offset, chunks * detail::chunk_row_bytes(set.shared));
    }
  }

 private:
  void add(std::uint64_t offset, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; ++i) editable.push_back(offset + i);
  }
};

/// Takes numbers from the front of the input; zeros when it is used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}
  bool empty() const { return left_.empty(); }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    for (; bytes > 0 && !left_.empty(); --bytes, left_ = left_.subspan(1))
      value = value << 8 | left_.front();
    return value;
  }

 private:
  std::span<const std::uint8_t> left_;
};

/// The numbers of the manifest's entry that lead into the file.
void edit_entry(ShardEntry& entry, Input& input) {
  std::vector<std::uint64_t*> fields = {&entry.index_offset, &entry.index_rows,
                                        &entry.names_offset, &entry.names_bytes,
                                        &entry.boxes_offset, &entry.boxes_bytes};
  for (DataSetEntry& set : entry.data_sets)
    fields.insert(fields.end(), {&set.offset, &set.elements, &set.chunks_offset});
  *fields[input.number(1) % fields.size()] = input.number(8);
}

/// A manifest takes only what can lie in the file; the reader relies on that.
ShardEntry through_json(const ShardEntry& entry) {
  return shard_entry_from_json(to_json(entry), "manifest.json");
}

/// 0 where the tables are refused before their digest is looked at.
std::uint64_t digest_of_tables(Storage& storage, const Path& path, const ShardEntry& entry,
                               std::uint64_t chunk_bytes) {
  const auto file = storage.open(path);
  std::vector<std::vector<ChunkRow>> rows;
  for (const DataSetEntry& set : entry.data_sets) {
    const std::uint64_t count = detail::ChunkGeometry(set, chunk_bytes).count();
    const std::size_t row_bytes = detail::chunk_row_bytes(set.shared);
    if (count > entry.bytes / row_bytes || set.chunks_offset > entry.bytes - count * row_bytes)
      return 0;
    std::vector<std::byte> table(count * row_bytes);
    file->read_at(set.chunks_offset, table);
    rows.push_back(detail::decode_chunk_table(table, set.shared));
  }
  const auto payload = detail::payload_extents(entry.data_sets, rows);
  std::uint64_t end = 0;
  for (const detail::Extent& extent : payload) {
    if (extent.offset < end || extent.offset > entry.bytes ||
        extent.bytes > entry.bytes - extent.offset)
      return 0;
    end = extent.offset + extent.bytes;
  }
  return detail::metadata_crc64(*file, entry.bytes, payload);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Sound kinds[] = {{{}, false, false},
                                {{Compression::Mode::Zstd, 0}, false, false},
                                {{}, true, false},
                                {{}, false, true}};
  const Sound& sound = kinds[size % std::size(kinds)];
  return fuzz::expect_error_or_success([&] {
    test::MemoryStorage storage = sound.storage;
    ShardEntry entry = sound.manifest.shards.front();
    std::string bytes = *storage.files.at(sound.shard.string());
    Input input(data, size);
    if (input.number(1) % 2 == 1) edit_entry(entry, input);
    while (!input.empty()) {
      const std::size_t at = sound.editable[input.number(2) % sound.editable.size()];
      bytes[at] = static_cast<char>(input.number(1));
    }
    storage.put(sound.shard, std::move(bytes));
    entry = through_json(entry);
    entry.metadata_crc64 =
        digest_of_tables(storage, sound.shard, entry, sound.manifest.chunk_bytes);
    const ShardReader reader(storage, sound.shard, entry, sound.manifest.save_id,
                             sound.manifest.catalog, sound.manifest.chunk_bytes);
    std::vector<std::vector<HeldPart>> held(sound.manifest.catalog.tensors.size());
    for (std::size_t row = 0; row < reader.rows().size(); ++row) {
      const FragmentRow fragment = reader.fragment(row);
      held[fragment.row->tensor].push_back(fragment.held());
    }
    for (std::size_t i = 0; i < held.size(); ++i) {
      std::ranges::sort(held[i], {}, &HeldPart::range);
      (void)find_coverage_fault(sound.manifest.catalog.tensors[i].shape, held[i], "tensor");
    }
    for (std::size_t row = 0; row < reader.rows().size(); ++row) {
      const IndexRow& found = reader.rows()[row];
      if (found.data_set == kDerivedDataSet) continue;
      const DType dtype = sound.manifest.catalog.tensors[found.tensor].dtype;
      std::vector<std::byte> out(found.elements * size_of(dtype));
      reader.read(row, {0, found.elements}, out);
    }
  });
}
