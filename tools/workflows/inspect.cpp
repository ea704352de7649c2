#include "workflows/inspect.hpp"

#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/converters/registry.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/version.hpp"

#include "team/read_blocks.hpp"
#include "workflows/catalog_digests.hpp"
#include "workflows/client_values.hpp"
#include "workflows/native_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace unishard::tools {
namespace {

/// A shard that only shares has its data sets in chunks, too.
bool has_encoded_chunk(const ShardReader& shard) {
  const auto& sets = shard.entry().data_sets;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const auto is_encoded = [](const ChunkRow& row) { return row.filter_mask == 0; };
    if (sets[i].compressed && std::ranges::any_of(shard.chunks(i), is_encoded)) return true;
  }
  return false;
}

Description::Shard describe_shard(const ShardReader& shard) {
  const ShardEntry& entry = shard.entry();
  Description::Shard out{entry.file, entry.rank, entry.bytes, shard.shared_payload_bytes(), {}};
  for (const BaseFile& base : entry.bases) out.shared_with.push_back(base.file);
  return out;
}

void read_tags(Storage& storage, const Path& folder, Description& out) {
  for (TagEntry& entry : list_tags(storage, folder))
    out.tags.push_back({std::move(entry), "native"});
  try {
    out.latest = read_latest(storage, folder);
  } catch (const Error& error) {
    out.latest_problem = error.what();  // it says nothing about the checkpoints
  }
}

Description describe_native(Storage& storage, const Path& path,
                            const std::optional<std::string>& tag, bool layout) {
  const auto opened = open_native_checkpoint(storage, path, tag);
  const CheckpointReader& reader = *opened;
  Description out;
  out.path = reader.folder();
  out.tag = reader.manifest().tag;
  out.saved_unix_seconds = reader.manifest().saved_unix_seconds;
  out.catalog = reader.catalog();
  read_tags(storage, absolute_folder(reader.folder()).parent_path(), out);
  for (const auto& shard : reader.shards()) {
    out.shards.push_back(describe_shard(*shard));
    if (has_encoded_chunk(*shard)) out.compression = kZstdFeature;
  }
  for (std::size_t i = 0; layout && i < out.catalog.tensors.size(); ++i) {
    auto& owners = out.owners.emplace_back();
    for (const CheckpointReader::StoredFragment& fragment : reader.fragments(i)) {
      owners.push_back({reader.shards()[fragment.shard]->entry().rank, fragment.range,
                        reader.box_of(fragment).owned()});
    }
  }
  return out;
}

/// Empty when no tensor is in files of ranks.
std::vector<std::vector<OwnedPart>> owners_of(const converters::Source& source) {
  std::vector<std::vector<OwnedPart>> owners;
  bool is_any = false;
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) {
    owners.emplace_back();
    for (const auto& [rank, range] : source.stored_ranges(i))
      owners.back().push_back({rank, range, {}});
    is_any |= !owners.back().empty();
  }
  if (!is_any) owners.clear();
  return owners;
}

/// One tensor per thread at a time, from its first to its last element.
void measure_missing(const converters::Source& source, const TransferOptions& options,
                     Catalog& catalog) {
  run_bounded(catalog.tensors.size(), options, [&](std::size_t index, std::span<std::byte> buffer) {
    TensorInfo& tensor = catalog.tensors[index];
    if (tensor.stats) return std::uint64_t{0};
    Stats stats;
    read_blocks(
        {0, tensor.elements()}, size_of(tensor.dtype), buffer, options,
        [&](ElementRange range, std::span<std::byte> out) { source.read(index, range, out); },
        [&](std::span<const std::byte> block) { stats.append(measure(tensor.dtype, block)); });
    tensor.stats = stats;
    return std::uint64_t{0};
  });
}

/// Names the states of the optimizer that are no tensors, which no table shows.
void note_scalar_states(const Catalog& catalog, std::vector<std::string>& notes) {
  const converters::OptimizerScalars scalars(catalog);
  std::map<std::string, std::size_t> counts;
  for (const std::string& fqn : scalars.fqns()) {
    for (const auto& [state, value] : scalars.of(fqn)) ++counts[state];
  }
  for (const auto& [state, count] : counts)
    notes.push_back(fmt::format("optimizer state {} of {} parameters is no tensor, but a value",
                                quote(state), count));
}

}  // namespace

bool Description::is_run() const {
  return !shards.empty() || catalog.groups.is_array() || format.starts_with("deepspeed") ||
         format == "dcp";
}

Description describe_tags(Storage& storage, const Path& path) {
  Path folder = absolute_folder(path);
  if (storage.kind(folder / kManifestFile) == EntryKind::File) folder = folder.parent_path();
  if (storage.kind(folder) != EntryKind::Directory) {
    raise(ErrorCode::NotFound, fmt::format("{} is no folder of checkpoints", path.string()),
          "name a folder that holds checkpoints, or one of them");
  }
  Description out;
  read_tags(storage, folder, out);
  const auto add = [&](const std::string& tag, const std::string& format, std::int64_t step) {
    Description::Tag& entry = out.tags.emplace_back();
    entry.tag = tag;
    entry.format = format;
    entry.step = step;
  };
  for (const auto& [tag, format, step] : converters::list_sub_folders(storage, folder)) {
    if (!format.empty()) {
      if (format != "native") add(tag, format, step.value_or(-1));
    } else if (step) {  // verl: global_step_10/actor
      for (const auto& model : converters::list_sub_folders(storage, folder / tag)) {
        if (!model.format.empty()) add(fmt::format("{}/{}", tag, model.tag), model.format, *step);
      }
    }
  }
  if (out.latest &&
      std::ranges::find(out.tags, *out.latest, &Description::Tag::tag) == out.tags.end()) {
    out.latest_problem = fmt::format("{} names {}, and there is no checkpoint of that name",
                                     (folder / kLatestFile).string(), quote(*out.latest));
  }
  return out;
}

Description describe(Storage& storage, const Path& path, const converters::OpenOptions& open,
                     const DescribeOptions& options) {
  Description out;
  if (options.like.empty() && !open.from_rank &&
      converters::probe(storage, path).format == "native") {
    out = describe_native(storage, path, open.tag, options.layout);
    out.format = "native";
  } else {
    const TaggedSource opened = open_tagged(storage, path, open, options.like);
    const auto& source = opened.source;
    out.format = source->format();
    out.path = source->path();
    out.tag = opened.tag;
    out.catalog = source->catalog();
    out.losses = source->losses();
    out.notes = source->notes_and_remarks();
    if (source->part_of()) out.notes.insert(out.notes.begin(), *source->part_of());
    if (options.layout) out.owners = owners_of(*source);
    if (options.identity) out.catalog = with_digests(*source, options.transfer);
    if (options.stats) measure_missing(*source, options.transfer, out.catalog);
  }
  note_scalar_states(out.catalog, out.notes);
  if (auto note = note_client_tensors(out.catalog.client_state))
    out.notes.push_back(std::move(*note));
  out.identity = identity(out.catalog);
  return out;
}

}  // namespace unishard::tools
