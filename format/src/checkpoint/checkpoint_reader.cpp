#include "unishard/format/checkpoint_reader.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/memory.hpp"

#include "shard/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

namespace unishard {

struct CheckpointReader::Impl {
  Path folder;
  Manifest manifest;
  std::vector<std::unique_ptr<ShardReader>> shards;
  std::vector<StoredFragment> fragments;  // by (tensor, begin)
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
    check_table_memory();
    const auto cache = make_chunk_cache();
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
                    entry.index_rows * sizeof(StoredFragment));
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
    for (std::size_t i = 0; i < tensors; ++i) {
      std::sort(fragments.begin() + static_cast<std::ptrdiff_t>(first[i]),
                fragments.begin() + static_cast<std::ptrdiff_t>(first[i + 1]),
                [](const StoredFragment& a, const StoredFragment& b) { return a.range < b.range; });
    }
  }

  std::span<const StoredFragment> of(std::size_t tensor) const {
    return std::span(fragments).subspan(first[tensor], first[tensor + 1] - first[tensor]);
  }

  const IndexRow& row_of(const StoredFragment& fragment) const {
    return shards[fragment.shard]->rows()[fragment.row];
  }

  // Checks that the fragments hold every element exactly once, and have the digest in the manifest.
  void check_coverage(std::size_t number) const {
    const TensorInfo& tensor = manifest.catalog.tensors[number];
    const auto fail = [&](const std::string& problem) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: tensor {}: {}", folder.native(), tensor.label(), problem),
            "use another checkpoint, or a copy of this one");
    };
    RowTotal total;
    for (const StoredFragment& fragment : of(number)) {
      const std::uint64_t begin = fragment.range.begin;
      if (begin != total.end) {
        fail(fmt::format("elements {} to {} are {} ({})", std::min(total.end, begin),
                         std::max(total.end, begin), begin > total.end ? "missing" : "stored twice",
                         shards[fragment.shard]->path().native()));
      }
      total.append(row_of(fragment), tensor.dtype);
    }
    if (total.end != tensor.elements())
      fail(fmt::format("elements {} to {} are missing", total.end, tensor.elements()));
    if (total.crc64 != tensor.crc64)
      fail("the shards' checksums do not combine to the manifest's (field crc64)");
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

  void read_stored(std::size_t tensor, ElementRange range, std::span<std::byte> out) const {
    const std::uint64_t item_bytes = size_of(manifest.catalog.tensors[tensor].dtype);
    for (const StoredFragment& fragment : fragments_from(tensor, range.begin)) {
      if (fragment.range.begin >= range.end) break;
      const ElementRange part = intersect(range, fragment.range);
      shards[fragment.shard]->read(
          fragment.row, part,
          out.subspan((part.begin - range.begin) * item_bytes, part.size() * item_bytes));
    }
  }

  // Returns the fragment that holds `element` and those after it.
  std::span<const StoredFragment> fragments_from(std::size_t tensor, std::uint64_t element) const {
    const auto all = of(tensor);
    return {std::ranges::upper_bound(all, element, {},
                                     [](const StoredFragment& p) { return p.range.end; }),
            all.end()};
  }

  void read_derived(std::size_t tensor, ElementRange range, std::span<std::byte> out) const {
    constexpr std::uint64_t kBlock = 4096;  // elements
    std::array<float, kBlock> master;
    const bool brain = manifest.catalog.tensors[tensor].dtype == DType::BFloat16;
    for (std::uint64_t at = range.begin; at < range.end; at += kBlock) {
      const ElementRange block{at, std::min(at + kBlock, range.end)};
      read_stored(masters[tensor], block,
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

std::uint64_t CheckpointReader::chunk_start(std::size_t tensor, std::uint64_t element) const {
  const std::size_t stored = catalog().tensors.at(tensor).derived ? impl_->masters[tensor] : tensor;
  const auto fragments = impl_->fragments_from(stored, element);
  if (fragments.empty()) return element;
  return impl_->shards[fragments.front().shard]->chunk_start(fragments.front().row, element);
}

void CheckpointReader::read(std::size_t tensor, ElementRange range,
                            std::span<std::byte> out) const {
  const TensorInfo& info = catalog().tensors.at(tensor);
  if (range.begin > range.end || range.end > info.elements() ||
      out.size() != range.size() * size_of(info.dtype)) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: elements {} to {} into {} bytes", info.label(), range.begin, range.end,
                      out.size()));
  }
  if (info.derived) {
    impl_->read_derived(tensor, range, out);
  } else {
    impl_->read_stored(tensor, range, out);
  }
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
