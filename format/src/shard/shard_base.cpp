#include "unishard/format/shard_base.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"

#include "codec/chunk_codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace unishard {
namespace {

/// Upper bound on the holders of one shard. Each costs one hard link to make and one file to open.
constexpr std::size_t kHoldersMax = 15;
/// Files up to this total size are kept regardless of the shard's size.
constexpr std::uint64_t kSlackBytes = std::uint64_t{16} << 20;

}  // namespace

ShardBase::ShardBase(Storage& storage, const Path& tag_folder, std::uint32_t rank,
                     std::uint32_t world_size, std::uint64_t chunk_bytes)
    : chunk_bytes_(chunk_bytes) {
  const Manifest manifest = read_manifest(storage, tag_folder);
  if (manifest.shards.size() != world_size) {
    raise(ErrorCode::Mismatch, fmt::format("{}: {} shards; {} are wanted", tag_folder.native(),
                                           manifest.shards.size(), world_size));
  }
  if (manifest.chunk_bytes != chunk_bytes) {
    raise(ErrorCode::Mismatch, fmt::format("{}: chunks of {} bytes; {} are wanted",
                                           tag_folder.native(), manifest.chunk_bytes, chunk_bytes));
  }
  const ShardEntry& entry = manifest.shards.at(rank);
  const ShardReader shard(storage, tag_folder / entry.file, entry, manifest.save_id,
                          manifest.catalog, manifest.chunk_bytes);
  const bool is_shared = std::ranges::any_of(entry.data_sets, &DataSetEntry::shared);
  holders_.push_back({shard.path(),
                      {fmt::format("base-{}-{:05}.h5", manifest.save_id, rank), manifest.save_id,
                       entry.bytes, is_shared ? "fresh" : "data"}});
  for (const BaseFile& base : entry.bases) holders_.push_back({tag_folder / base.file, base});
  for (std::size_t i = 0; i < entry.data_sets.size(); ++i) {
    const DataSetEntry& set = entry.data_sets[i];
    DataSet& known = sets_[set.name()];
    known = {set.elements, shard.chunks(i)};
    for (ChunkRow& row : known.chunks) {
      ++row.file;
      if (!set.compressed) row.filter_mask = detail::kNoFilter;
    }
  }
  for (std::size_t i = 0; i < shard.rows().size(); ++i) {
    const IndexRow& row = shard.rows()[i];
    const TensorInfo& tensor = manifest.catalog.tensors[row.tensor];
    fragments_.emplace(tensor.label(), Known{tensor.dtype, row.range, shard.fragment(i).box.owned(),
                                             row.crc64, row.stats});
  }
  choose_holders(shard.stored_payload_bytes());
}

void ShardBase::choose_holders(std::uint64_t stored_bytes) {
  std::vector<std::uint64_t> used(holders_.size());
  for (const auto& [name, set] : sets_)
    for (const ChunkRow& row : set.chunks) used[row.file - 1] += row.stored_bytes;
  std::vector<std::size_t> order(holders_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return used[i]; });

  std::vector<std::uint32_t> number(holders_.size());  // new number; 0: not kept
  std::vector<Holder> kept;
  std::uint64_t room = 2 * stored_bytes + kSlackBytes;
  for (const std::size_t i : order) {
    const std::uint64_t bytes = holders_[i].file.bytes;
    if (used[i] == 0 || bytes > room || kept.size() == kHoldersMax) continue;
    room -= bytes;
    kept.push_back(std::move(holders_[i]));
    number[i] = static_cast<std::uint32_t>(kept.size());
  }
  holders_ = std::move(kept);
  for (auto& [name, set] : sets_)
    for (ChunkRow& row : set.chunks) row.file = number[row.file - 1];
}

const ChunkRow* ShardBase::find(const DataSetEntry& set, std::uint64_t chunk) const {
  const auto found = sets_.find(set.name());
  if (found == sets_.end() || found->second.elements != set.elements) return nullptr;
  const ChunkRow& row = found->second.chunks.at(chunk);
  return row.file == 0 ? nullptr : &row;
}

const ShardBase::Known* ShardBase::find(const TensorInfo& tensor, const Fragment& fragment) const {
  const Box box = fragment.box ? *fragment.box : Box{};
  for (auto [at, end] = fragments_.equal_range(tensor.label()); at != end; ++at) {
    const Known& known = at->second;
    if (known.dtype == tensor.dtype && known.range == fragment.range && known.box == box)
      return &known;
  }
  return nullptr;
}

}  // namespace unishard
