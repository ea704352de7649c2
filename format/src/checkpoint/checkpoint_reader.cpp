#include "unishard/format/checkpoint_reader.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/memory.hpp"
#include "unishard/format/node_shards.hpp"

#include "checkpoint/gather.hpp"
#include "shard/chunk_cache.hpp"
#include "shard/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

namespace unishard {
namespace {

/// Returns false when two boxes of one tensor have no element in common.
bool may_overlap(BoxView a, BoxView b) {
  if (a.empty() || b.empty()) return true;
  for (std::size_t i = 0; i < a.sizes.size(); ++i) {
    if (a.offsets[i] >= b.offsets[i] + b.sizes[i] || b.offsets[i] >= a.offsets[i] + a.sizes[i])
      return false;
  }
  return true;
}

}  // namespace

struct CheckpointReader::Impl {
  Path folder;
  Manifest manifest;
  std::shared_ptr<ChunkCache> cache;
  std::vector<std::unique_ptr<ShardReader>> shards;
  std::vector<StoredFragment> fragments;  // by (tensor, begin)
  // One per fragment: the largest end of its tensor's fragments up to it.
  std::vector<std::uint64_t> reaches;
  // Index of each tensor's first fragment; one more entry at the end.
  std::vector<std::size_t> first;
  std::vector<std::size_t> masters;  // index of each derived tensor's fp32 state

  void open(Storage& storage) {
    if (storage.kind(folder / kManifestFile) == EntryKind::Missing) {
      raise(ErrorCode::NotFound, fmt::format("{}: no {} here, so this is not a complete checkpoint",
                                             folder.native(), kManifestFile));
    }
    manifest = read_manifest(storage, folder);
    refuse_extra_shards(storage);
    require_all_nodes(storage);
    check_table_memory();
    cache = make_chunk_cache();
    for (const ShardEntry& entry : manifest.shards) {
      shards.push_back(std::make_unique<ShardReader>(storage, folder / entry.file, entry,
                                                     manifest.save_id, manifest.catalog,
                                                     manifest.chunk_bytes, cache));
    }
  }

  // Checks the memory of all tables before the first is read: a sparse file claims large tables at
  // no cost.
  void check_table_memory() const {
    MemoryBudget memory(
        fmt::format("{}: the tables of {} shards", folder.native(), manifest.shards.size()));
    for (const ShardEntry& entry : manifest.shards)
      memory.charge(detail::table_memory(entry, manifest.chunk_bytes) +
                    entry.index_rows * (sizeof(FragmentRow) + sizeof(HeldPart)) +
                    entry.index_rows * (sizeof(StoredFragment) + sizeof(std::uint64_t)));
  }

  // A file that looks like a shard and is not in the manifest means that two folders were mixed.
  void refuse_extra_shards(Storage& storage) const {
    std::unordered_set<std::string> known;
    for (const ShardEntry& entry : manifest.shards) known.insert(entry.file);
    for (const Entry& entry : storage.list(folder)) {
      if (entry.name.starts_with("shard-") && entry.name.ends_with(".h5") &&
          !known.contains(entry.name)) {
        raise(
            ErrorCode::Corrupt,
            fmt::format("{}: this shard is not in the manifest", (folder / entry.name).native()),
            "files of two checkpoints were mixed: remove the file, or copy the whole folder again");
      }
    }
  }

  // A folder that holds one node's part of a checkpoint.
  void require_all_nodes(Storage& storage) const {
    if (nodes_of(manifest.catalog).empty()) return;
    const std::vector<bool> here = shards_here(storage, folder, manifest);
    if (std::ranges::find(here, false) == here.end()) return;
    raise(ErrorCode::NotFound,
          fmt::format("{}: each node saved its own shards, and these are not here: {}",
                      folder.native(), list_missing_shards(manifest, here)),
          "`unishard gather NODE_DIR... OUT` makes one checkpoint of the nodes' folders");
  }

  void collect_fragments() {
    const std::size_t tensors = manifest.catalog.tensors.size();
    first.assign(tensors + 1, 0);
    for (const auto& shard : shards) {
      for (const IndexRow& row : shard->rows()) ++first[row.tensor + 1];
    }
    for (std::size_t i = 0; i < tensors; ++i) first[i + 1] += first[i];
    fragments.resize(first.back());
    std::vector<std::size_t> next(first.begin(), first.end() - 1);
    for (std::uint32_t shard = 0; shard < shards.size(); ++shard) {
      const auto& rows = shards[shard]->rows();
      for (std::uint32_t row = 0; row < rows.size(); ++row)
        fragments[next[rows[row].tensor]++] = {shard, row, rows[row].range};
    }
    reaches.reserve(fragments.size());
    for (std::size_t i = 0; i < tensors; ++i) {
      std::sort(fragments.begin() + static_cast<std::ptrdiff_t>(first[i]),
                fragments.begin() + static_cast<std::ptrdiff_t>(first[i + 1]),
                [](const StoredFragment& a, const StoredFragment& b) { return a.range < b.range; });
      std::uint64_t reach = 0;
      for (const StoredFragment& fragment : of(i))
        reaches.push_back(reach = std::max(reach, fragment.range.end));
    }
  }

  // Where boxes lie side by side, a read in parts comes back to a chunk of each of them. Two
  // threads and the part that was read before should find these chunks in the cache.
  void fit_cache() const {
    constexpr std::uint64_t kReaders = 3, kCapacityMax = std::uint64_t{64} << 20;
    if (std::ranges::all_of(manifest.shards, [](const auto& it) { return it.boxes_bytes == 0; }))
      return;
    std::uint64_t most = 1;
    for (std::size_t tensor = 0; tensor + 1 < first.size(); ++tensor) {
      std::vector<std::uint64_t> ends;
      for (const StoredFragment& fragment : of(tensor)) ends.push_back(fragment.range.end);
      std::ranges::sort(ends);
      std::size_t ended = 0;
      for (std::uint64_t begun = 0; const StoredFragment& fragment : of(tensor)) {
        while (ends[ended] <= fragment.range.begin) ++ended;
        most = std::max(most, ++begun - ended);
      }
    }
    if (most > 1) cache->grow(std::min(kReaders * most * manifest.chunk_bytes, kCapacityMax));
  }

  std::span<const StoredFragment> of(std::size_t tensor) const {
    return std::span(fragments).subspan(first[tensor], first[tensor + 1] - first[tensor]);
  }

  // Checks that the fragments hold every element exactly once, and have the digest in the manifest.
  void check_coverage(std::size_t number) const {
    const TensorInfo& tensor = manifest.catalog.tensors[number];
    const auto fail = [&](const std::string& problem) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: tensor {}: {}", folder.native(), tensor.label(), problem),
            "use another checkpoint, or a copy of this one");
    };
    std::vector<FragmentRow> rows;
    std::vector<HeldPart> parts;
    for (const StoredFragment& fragment : of(number)) {
      rows.push_back(shards[fragment.shard]->fragment(fragment.row));
      parts.push_back(rows.back().held());
    }
    const std::string label = fmt::format("{}: tensor {}", folder.native(), tensor.label());
    if (const auto fault = find_coverage_fault(tensor.shape, parts, label)) {
      const std::string_view what = fault->is_missing ? "missing" : "stored twice";
      if (!fault->is_exact)
        fail(fmt::format("element {} is {} (the last wrong one is {})", fault->range.begin, what,
                         fault->range.end - 1));
      fail(fmt::format("elements {} to {} are {}{}", fault->range.begin, fault->range.end, what,
                       holder_of(number, fault->range.begin)));
    }
    if (total_of(tensor, rows).crc64 != tensor.crc64)
      fail("the shards' checksums do not combine to the manifest's (field crc64)");
  }

  /// Names the shard of the last fragment that begins at `element` or before.
  std::string holder_of(std::size_t tensor, std::uint64_t element) const {
    std::string holder;
    for (const StoredFragment& fragment : of(tensor)) {
      if (fragment.range.begin > element) break;
      holder = fmt::format(" ({})", shards[fragment.shard]->path().native());
    }
    return holder;
  }

  void read(std::size_t tensor, const ElementMap& wanted, BoxView box,
            std::span<std::byte> out) const {
    const TensorInfo& info = manifest.catalog.tensors[tensor];
    if (out.size() != wanted.elements() * size_of(info.dtype)) {
      raise(ErrorCode::InvalidArgument, fmt::format("{}: {} elements into {} bytes", info.label(),
                                                    wanted.elements(), out.size()));
    }
    if (info.derived) {
      read_derived(tensor, wanted, out);
    } else {
      read_stored(tensor, wanted, box, out);
    }
  }

  void find_masters() {
    std::unordered_map<std::string_view, std::size_t> fp32;
    const auto& tensors = manifest.catalog.tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].state == state::kFp32) fp32.emplace(tensors[i].fqn, i);
    }
    masters.assign(tensors.size(), 0);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].derived) masters[i] = fp32.at(tensors[i].fqn);
    }
  }

  // Reads what `wanted` holds, which is `box` or a range. `out` has its elements in order.
  void read_stored(std::size_t tensor, const ElementMap& wanted, BoxView box,
                   std::span<std::byte> out) const {
    for (const StoredFragment& fragment : of(tensor, wanted.bounds())) {
      const ShardReader& shard = *shards[fragment.shard];
      if (may_overlap(shard.fragment(fragment.row).box, box))
        detail::gather(shard, fragment.row, wanted, out);
    }
  }

  // Returns the fragments that may hold elements of `range`.
  std::span<const StoredFragment> of(std::size_t tensor, ElementRange range) const {
    const auto all = of(tensor);
    const auto reach = std::span(reaches).subspan(first[tensor], all.size());
    const auto begin = std::ranges::upper_bound(reach, range.begin) - reach.begin();
    const auto end =
        std::ranges::lower_bound(all, range.end, {},
                                 [](const StoredFragment& part) { return part.range.begin; }) -
        all.begin();
    if (begin >= end) return {};
    return all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }

  void read_derived(std::size_t tensor, const ElementMap& wanted, std::span<std::byte> out) const {
    const std::uint64_t width = size_of(manifest.catalog.tensors[tensor].dtype);
    wanted.each_run({0, wanted.elements()}, [&](std::uint64_t to, ElementRange run) {
      read_derived(tensor, run, out.subspan(to * width, run.size() * width));
    });
  }

  void read_derived(std::size_t tensor, ElementRange range, std::span<std::byte> out) const {
    constexpr std::uint64_t kBlock = 4096;  // elements
    std::array<float, kBlock> master;
    const bool brain = manifest.catalog.tensors[tensor].dtype == DType::BFloat16;
    for (std::uint64_t at = range.begin; at < range.end; at += kBlock) {
      const ElementRange block{at, std::min(at + kBlock, range.end)};
      read_stored(masters[tensor], ElementMap(block), {},
                  std::as_writable_bytes(std::span(master)).first(block.size() * sizeof(float)));
      for (std::uint64_t i = 0; i < block.size(); ++i) {
        const std::uint16_t bits =
            brain ? round_to_bfloat16(master[i]) : round_to_float16(master[i]);
        std::memcpy(out.data() + (at - range.begin + i) * sizeof(bits), &bits, sizeof(bits));
      }
    }
  }
};

CheckpointReader::CheckpointReader(Storage& storage, Path tag_folder)
    : impl_(std::make_unique<Impl>()) {
  impl_->folder = std::move(tag_folder);
  impl_->open(storage);
  impl_->collect_fragments();
  for (std::size_t i = 0; i < catalog().tensors.size(); ++i) impl_->check_coverage(i);
  impl_->fit_cache();
  impl_->find_masters();
}

CheckpointReader::~CheckpointReader() = default;

const Path& CheckpointReader::folder() const { return impl_->folder; }
const Manifest& CheckpointReader::manifest() const { return impl_->manifest; }
const std::vector<std::unique_ptr<ShardReader>>& CheckpointReader::shards() const {
  return impl_->shards;
}
std::span<const CheckpointReader::StoredFragment> CheckpointReader::fragments(
    std::size_t tensor) const {
  return impl_->of(tensor);
}

std::span<const CheckpointReader::StoredFragment> CheckpointReader::fragments(
    std::size_t tensor, ElementRange range) const {
  return impl_->of(tensor, range);
}
BoxView CheckpointReader::box_of(const StoredFragment& fragment) const {
  return impl_->shards.at(fragment.shard)->fragment(fragment.row).box;
}

std::uint64_t CheckpointReader::chunk_start(std::size_t tensor, std::uint64_t element) const {
  const std::size_t stored = catalog().tensors.at(tensor).derived ? impl_->masters[tensor] : tensor;
  const auto fragments = impl_->of(stored, {element, element + 1});
  if (fragments.empty()) return element;
  const ShardReader& shard = *impl_->shards[fragments.back().shard];
  const ElementMap map = shard.map_of(fragments.back().row);
  const std::uint64_t own = map.own_before(element);
  if (own == map.elements()) return element;
  const std::uint64_t start = map.element(shard.chunk_start(fragments.back().row, own));
  const bool has_long_runs =
      map.run_elements() * size_of(catalog().tensors[stored].dtype) >= manifest().chunk_bytes;
  if (map.is_range() || has_long_runs) return std::min(start, element);
  return std::min(start, element) / map.row_elements() * map.row_elements();
}

void CheckpointReader::read(std::size_t tensor, ElementRange range,
                            std::span<std::byte> out) const {
  const TensorInfo& info = catalog().tensors.at(tensor);
  if (range.begin > range.end || range.end > info.elements())
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: there are no elements {} to {}", info.label(), range.begin, range.end));
  impl_->read(tensor, ElementMap(range), {}, out);
}

void CheckpointReader::read_box(std::size_t tensor, BoxView box, std::span<std::byte> out) const {
  const TensorInfo& info = catalog().tensors.at(tensor);
  if (const auto problem = box_problem(info.shape, box))
    raise(ErrorCode::InvalidArgument, fmt::format("{}: {}", info.label(), *problem));
  impl_->read(tensor, ElementMap(info.shape, box), box, out);
}

std::unique_ptr<CheckpointReader> open_checkpoint(Storage& storage, const Path& path,
                                                  const std::optional<std::string>& tag) {
  std::unique_ptr<CheckpointReader> reader;
  read_stable(storage, path, tag, [&](const Path& folder) {
    reader = std::make_unique<CheckpointReader>(storage, folder);
  });
  return reader;
}

}  // namespace unishard
